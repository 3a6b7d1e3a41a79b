"""The plugin template installs into a fresh environment, passes its tests there, and is what the guide builds."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from windlass import Agent
from windlass.errors import ConfigError
from windlass.testing import ScriptedModel

PROJECT = Path(__file__).resolve().parent.parent
PLUGIN = PROJECT / "examples" / "plugin"
GUIDE = PROJECT / "docs" / "guides" / "write-a-capability.md"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment with the plugin.

    It sees the packages of this one, so nothing is downloaded. The plugin itself is built and installed.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    made = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    site = run(made, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    ours = sysconfig.get_path("purelib")
    Path(site, "windlass_tests.pth").write_text(f"import site; site.addsitedir({ours!r})\n", encoding="utf-8")
    copy = shutil.copytree(PLUGIN, folder / "plugin", ignore=shutil.ignore_patterns("__pycache__"))
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    run(sys.executable, "-m", "pip", "--python", str(made), "install", *options, str(copy))
    shutil.rmtree(copy / "src")
    return made


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """The output of a command, which must succeed."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHON"))}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=clean, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_own_tests_pass_in_a_fresh_environment(python):
    output = run(python, "-m", "pytest", "-p", "no:cacheprovider", "-q", cwd=python.parent.parent / "plugin")
    passed = re.search(r"(\d+) passed", output)
    assert passed is not None
    assert int(passed[1]) >= 20
    assert "failed" not in output


def test_an_agent_finds_it_there_by_its_entry_point_and_not_here(python, tmp_path):
    script = """
import windlass_office_hours
from windlass import Agent
from windlass.testing import ScriptedModel

explained = Agent(ScriptedModel(), capabilities=["office_hours"]).explain()
print(windlass_office_hours.__file__)
print(explained.data["capabilities"][0]["summary"])
"""
    place, summary = run(python, "-c", script, cwd=tmp_path).splitlines()
    assert Path(place).is_relative_to(python.parent.parent)
    assert summary == "Mon, Tue, Wed, Thu, Fri 09:00 to 17:00 UTC"
    with pytest.raises(ConfigError, match="no installed package offers a capability 'office_hours'"):
        Agent(ScriptedModel(), capabilities=["office_hours"])


def test_the_guide_builds_the_same_code():
    blocks = re.findall(r"```(?:python|toml)\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    for path in ("src/windlass_office_hours/office_hours.py", "pyproject.toml"):
        assert (PLUGIN / path).read_text(encoding="utf-8") in blocks
