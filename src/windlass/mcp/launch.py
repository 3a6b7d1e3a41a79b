"""Becomes the program of an MCP server that ends when this process ends. It runs as a script: no other import."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask the kernel for a signal at the parent's death, then execute the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the signal was asked for
        sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
