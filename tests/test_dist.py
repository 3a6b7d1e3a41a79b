"""The packages: what is in them, and that a wheel works where only it and its base dependencies are installed.

`make dist` does the same with each extra.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from release.environments import (
    USES,
    Environment,
    check_commands,
    check_demo,
    check_installed,
    check_readme,
    check_sources,
    extras_in,
    readme_commands,
)
from release.packages import (
    PROJECT,
    build,
    problems_of_rebuilding,
    problems_of_sdist,
    problems_of_wheel,
    requirements,
)
from tests.servers.vendor import Vendor


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(PROJECT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def env(packages: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the wheel, its base dependencies, and what the README installs."""
    found = Environment(tmp_path_factory.mktemp("env"))
    needed = requirements(packages[0])
    extras = [extra for line in readme_commands() for extra in extras_in(line)]
    found.install_offline(packages[0], [name for extra in ("", *extras) for name in needed[extra]])
    return found


def test_the_packages_are_whole_and_the_sdist_builds_the_same_wheel(packages, tmp_path):
    wheel, sdist = packages
    assert problems_of_wheel(wheel) == []
    assert problems_of_sdist(sdist) == []
    assert problems_of_rebuilding(wheel, sdist, tmp_path) == []


def test_what_is_wrong_with_a_wheel_is_named(packages, tmp_path):
    wheel = tmp_path / packages[0].name
    with zipfile.ZipFile(packages[0]) as whole, zipfile.ZipFile(wheel, "w") as broken:
        for name in whole.namelist():
            if name.endswith("/py.typed"):
                continue
            data = whole.read(name)
            if name.endswith("inspector/static/index.html"):
                data += f"<!-- {PROJECT} -->".encode()
            if name.endswith("METADATA"):
                data = data.replace(b"License-Expression: MIT\n", b"") + b"\nSee [this](docs/start.md)."
            broken.writestr(name, data)
        broken.writestr("tests/test_it.py", "def test_it(): pass")
    problems = "\n".join(problems_of_wheel(wheel))
    for problem in (
        "windlass/py.typed is missing",
        "tests/test_it.py does not belong into a wheel",
        "index.html is not what is in src/",
        f"index.html names {PROJECT}",
        "there is no license_expression",
        "the description names '](docs/start.md)'",
        "is not in RECORD with its hash",
    ):
        assert problem in problems


def test_each_extra_has_a_script_that_tries_it(packages):
    assert set(USES) == set(requirements(packages[0])) - {""}


def test_an_installed_wheel_works_and_names_nothing_that_users_do_not_have(env):
    check_installed(env)
    check_demo(env)
    check_commands(env)
    check_sources()


def test_the_readme_runs_with_what_it_says_to_install(env):
    with Vendor(("refund", {"order": "A7", "amount": 80}), "You get 80 back.").serving() as vendor:
        check_readme(env, {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": vendor.url})
        assert vendor.asked
