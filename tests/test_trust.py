"""The user's folders, and the list of files that the user trusts."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from windlass import folders, trust
from windlass.errors import ConfigError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WINDLASS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_the_folders_are_private_and_below_the_home(home: Path):
    for folder in (folders.data_folder(), folders.config_folder()):
        assert folder.parent == home
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_without_a_home_the_folders_are_those_of_the_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("WINDLASS_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert folders.data_folder().is_relative_to(tmp_path)
    assert folders.config_folder().is_relative_to(tmp_path)
    assert folders.data_folder().name == "windlass" or folders.data_folder().parent.name == "windlass"


def test_a_folder_that_cannot_be_made_is_named(home: Path):
    home.write_text("a file")
    with pytest.raises(ConfigError, match="cannot be made"):
        folders.data_folder()


def test_a_file_is_trusted_until_it_changes(tmp_path: Path):
    file = tmp_path / "agent.toml"
    file.write_text("a = 1")
    assert not trust.is_trusted(file)
    trust.trust(file)
    assert trust.is_trusted(file)
    assert trust.is_trusted_content(file, b"a = 1")
    assert not trust.is_trusted_content(file, b"a = 2")
    file.write_text("a = 2")
    assert not trust.is_trusted(file)
    file.write_text("a = 1")
    assert trust.is_trusted(file)


def test_trust_is_by_the_real_path_and_not_by_content_alone(tmp_path: Path):
    file, copy, link = tmp_path / "agent.toml", tmp_path / "copy.toml", tmp_path / "link.toml"
    file.write_text("a = 1")
    copy.write_text("a = 1")
    link.symlink_to(file)
    trust.trust(link)
    assert trust.is_trusted(file)
    assert not trust.is_trusted(copy)
    assert list(trust.trusted()) == [str(file.resolve())]


def test_trust_can_be_taken_back(tmp_path: Path):
    file = tmp_path / "agent.toml"
    file.write_text("a = 1")
    assert not trust.distrust(file)
    trust.trust(file)
    assert trust.distrust(file)
    assert not trust.is_trusted(file)


def test_an_absent_file_and_a_damaged_list_are_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"absent\.toml"):
        trust.is_trusted(tmp_path / "absent.toml")
    (folders.config_folder() / trust.FILE).write_text("[")
    file = tmp_path / "agent.toml"
    file.write_text("a = 1")
    with pytest.raises(ConfigError, match="cannot be read"):
        trust.is_trusted(file)
