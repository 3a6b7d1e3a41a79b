"""`windlass local`: weights are fetched and listed, and what goes wrong is said in one line."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from windlass.cli import main
from windlass.errors import WindlassError
from windlass.models.local import weights


@pytest.fixture
def runner(tmp_path, monkeypatch) -> CliRunner:
    monkeypatch.setenv("WINDLASS_CACHE", str(tmp_path))
    return CliRunner()


def test_the_list_says_what_is_missing_and_how_to_get_it(runner):
    result = runner.invoke(main, ["local", "list"])
    assert (result.exit_code, result.output) == (0, "local:smollm2  not installed: windlass local install smollm2\n")


def test_the_list_says_where_the_weights_are(runner, monkeypatch):
    monkeypatch.setattr("windlass.cli.local.found", lambda weights: Path("here", weights.file))
    result = runner.invoke(main, ["local", "list"])
    assert result.output == f"local:smollm2  {Path('here', weights.KNOWN['smollm2'].file)}\n"


def test_install_prints_where_the_weights_are(runner, monkeypatch):
    monkeypatch.setattr("windlass.cli.local.install", lambda name: Path(f"{name}.gguf"))
    result = runner.invoke(main, ["local", "install"])
    assert (result.exit_code, result.stdout) == (0, "smollm2.gguf\n")
    assert "fetching smollm2, about 98 MB" in result.stderr


def test_install_says_why_it_could_not(runner, monkeypatch):
    def fails(name: str) -> Path:
        raise weights.InstallFailed("the weights of smollm2 could not be downloaded: no network")

    monkeypatch.setattr("windlass.cli.local.install", fails)
    result = runner.invoke(main, ["local", "install"])
    assert result.exit_code == 1
    assert result.stderr.endswith("Error: the weights of smollm2 could not be downloaded: no network\n")
    assert issubclass(weights.InstallFailed, WindlassError)


def test_install_knows_only_what_it_knows(runner):
    result = runner.invoke(main, ["local", "install", "giant"])
    assert result.exit_code == 1
    assert "use local:smollm2" in result.stderr


def test_the_demo_says_how_to_get_a_model_that_is_missing(runner):
    result = runner.invoke(main, ["demo", "--model", "local:smollm2"])
    assert result.exit_code == 1
    assert result.stderr.endswith(": pip install 'windlass[local]' && windlass local install\n")
