"""`make dist`: builds the packages, checks them, and tries the wheel with each extra in a fresh environment."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.servers.vendor import Vendor

from .environments import (
    USES,
    Environment,
    check_commands,
    check_demo,
    check_installed,
    check_readme,
    check_sources,
    environment,
    extras_in,
    readme_commands,
)
from .packages import PROJECT, build, problems_of_rebuilding, problems_of_sdist, problems_of_wheel, requirements


def main(only: list[str]) -> None:
    """Do all of it; with names of extras, only those."""
    wheel, sdist = build(PROJECT, PROJECT / "dist")
    with tempfile.TemporaryDirectory() as folder:
        problems = [
            *[f"{wheel.name}: {problem}" for problem in problems_of_wheel(wheel)],
            *[f"{sdist.name}: {problem}" for problem in problems_of_sdist(sdist)],
            *problems_of_rebuilding(wheel, sdist, Path(folder)),
        ]
    if problems:
        raise SystemExit("\n".join(problems))
    check_sources()
    print(f"{wheel.name} and {sdist.name} are whole; the sdist builds the same wheel")

    extras = list(requirements(wheel))
    untried = set(extras) - {""} - set(USES)
    if untried:
        raise SystemExit(f"no script in release/uses/ tries {', '.join(sorted(untried))}")
    failed: list[str] = []
    for extra in only or extras:
        with environment() as env:
            _try(f"{extra or 'no extra'}", lambda env=env, extra=extra: _check(env, wheel, extra), failed)  # type: ignore[misc]
    if not only:
        with environment() as env:
            _try("the README", lambda: _check_readme(env, wheel), failed)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def _try(what: str, check: Callable[[], None], failed: list[str]) -> None:
    began = time.monotonic()
    try:
        check()
    except (SystemExit, AssertionError) as error:
        failed.append(what)
        print(f"{what:12} FAILED\n{error}", flush=True)
    else:
        print(f"{what:12} works, {time.monotonic() - began:.1f} s", flush=True)


def _check(env: Environment, wheel: Path, extra: str) -> None:
    env.install(f"{wheel}[{extra}]" if extra else str(wheel))
    check_installed(env)
    if extra:
        keys = {f"{vendor}_API_KEY": "none" for vendor in ("ANTHROPIC", "GEMINI", "GOOGLE", "OPENAI")}
        script = USES[extra].read_text(encoding="utf-8")
        env.script(script, {**keys, "AWS_DEFAULT_REGION": "eu-west-1", "PATH": f"{env.bin}:/usr/bin:/bin"})
    else:
        check_demo(env)
        check_commands(env)


def _check_readme(env: Environment, wheel: Path) -> None:
    """The lines of the README in their order: what it installs is installed, and its Python runs."""
    extras = [extra for line in readme_commands() for extra in extras_in(line)]
    env.install(f"{wheel}[{','.join(dict.fromkeys(extras))}]" if extras else str(wheel))
    with Vendor(("refund", {"order": "A7", "amount": 80}), "You get 80 back.").serving() as vendor:
        check_readme(env, {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": vendor.url})
        assert vendor.asked, "the README asks no model"
    for line in readme_commands():
        if line.startswith("windlass ") and not line.startswith(("windlass ui", "windlass serve", "windlass chat")):
            env.run(*line.split(), more={})


if __name__ == "__main__":
    main(sys.argv[1:])
