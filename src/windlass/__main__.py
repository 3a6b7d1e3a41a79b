"""Lets `python -m windlass` stand for the `windlass` command."""

from windlass.cli import main

if __name__ == "__main__":
    main()
