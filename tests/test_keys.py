"""Keys of vendors: found in the environment, the keyring, or a private file; never printed."""

from __future__ import annotations

import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import keyring
import pytest
from click.testing import CliRunner
from keyring.backend import KeyringBackend

from windlass import keys
from windlass.cli import main
from windlass.errors import ConfigError
from windlass.models import open_model

KEY = "sk-geheim-0123456789"


class Drawer(KeyringBackend):
    """A keyring in memory."""

    priority = 1

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, username: str) -> str | None:
        return self.held.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.held[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        del self.held[service, username]


class Broken(Drawer):
    def get_password(self, service: str, username: str) -> str | None:
        raise RuntimeError("no desktop")

    def set_password(self, service: str, username: str, password: str) -> None:
        raise RuntimeError(f"cannot store {password}")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WINDLASS_HOME", str(tmp_path))
    for vendor, names in keys.VARIABLES.items():
        for name in (*names, f"{vendor.upper()}_BASE_URL"):
            monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def drawer() -> Iterator[None]:
    before = keyring.get_keyring()
    keyring.set_keyring(Drawer())
    yield
    keyring.set_keyring(before)


@pytest.fixture
def broken() -> Iterator[None]:
    before = keyring.get_keyring()
    keyring.set_keyring(Broken())
    yield
    keyring.set_keyring(before)


def run(*arguments: str, input: str = "") -> str:
    result = CliRunner().invoke(main, ["keys", *arguments], input=input)
    assert KEY not in result.output
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_key_goes_to_the_keyring_and_opens_models(drawer):
    with pytest.raises(ConfigError, match="has no key"):
        open_model("groq:x")
    assert "stored in the keyring" in run("set", "groq", input=KEY + "\n")
    assert keys.stored_key("groq") == KEY
    open_model("groq:x")
    assert "groq         keyring" in run("list")
    assert "removed from the keyring" in run("remove", "groq")
    assert keys.stored_key("groq") is None


def test_the_environment_comes_first(drawer, monkeypatch: pytest.MonkeyPatch):
    run("set", "openai", input=KEY)
    assert keys.stored_key("openai-responses") == KEY
    monkeypatch.setenv("OPENAI_API_KEY", "other")
    assert keys.stored_key("openai") is None
    assert "openai       environment (OPENAI_API_KEY)" in run("list")


def test_a_stored_key_goes_to_no_other_server(drawer, monkeypatch: pytest.MonkeyPatch):
    run("set", "openai", input=KEY)
    used: list[tuple[str | None, str | None]] = []

    def init(self: object, name: str, base_url: str | None = None, api_key: str | None = None) -> None:
        used.append((base_url, api_key))

    monkeypatch.setattr("windlass.models.openai.OpenAIChat.__init__", init)
    open_model("openai:x")
    open_model("openai:x", base_url="https://elsewhere.example")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://elsewhere.example")
    open_model("openai:x")
    assert used == [(None, KEY), ("https://elsewhere.example", None), (None, None)]


def test_a_file_is_used_only_when_asked_for_and_is_private(broken, home: Path):
    refused = CliRunner().invoke(main, ["keys", "set", "xai"], input=KEY)
    assert refused.exit_code == 1
    assert KEY not in refused.output
    assert "no keyring that works (RuntimeError); set XAI_API_KEY" in refused.stderr
    assert not (home / "config" / "keys.json").exists()
    run("set", "xai", "--file", input=KEY)
    file = home / "config" / "keys.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert keys.stored_key("xai") == KEY
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="can be read by others"):
        keys.stored_key("xai")
    file.chmod(0o600)
    assert "removed from the file" in run("remove", "xai")
    assert keys.stored_key("xai") is None


@pytest.mark.parametrize("key", ["", "two words", "a\x1bb"])
def test_a_key_that_is_none_is_refused_without_repeating_it(drawer, key: str):
    with pytest.raises(ConfigError, match="one line of visible characters") as raised:
        keys.set_key("openai", key)
    assert not key or key not in str(raised.value)


def test_an_unknown_vendor_is_named_before_the_key_is_read():
    result = CliRunner().invoke(main, ["keys", "set", "opnai"], input=KEY)
    assert result.exit_code == 1
    assert "vendors: anthropic, " in result.stderr


def test_a_model_with_a_key_in_the_environment_does_not_load_the_keyring():
    code = "import sys, windlass.models as m; m.open_model('openai:x'); assert 'keyring' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={"OPENAI_API_KEY": "none", "PATH": ""})


@pytest.mark.parametrize("vendor", ["openai", "openai-chat", "anthropic", "google", "groq"])
def test_a_model_without_a_key_says_how_to_store_one(vendor: str, monkeypatch: pytest.MonkeyPatch):
    name = vendor.removesuffix("-chat")
    for variable in keys.VARIABLES[name]:
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ConfigError, match=f"windlass keys set {name}"):
        open_model(f"{vendor}:m")


def test_a_vendor_whose_key_is_not_stored_is_not_told_to(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("AZURE_OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="has no key") as caught:
        open_model("azure:m", base_url="https://example.org")
    assert "windlass keys" not in str(caught.value)
