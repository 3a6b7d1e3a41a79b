"""Keys of model vendors: from the environment, the system's keyring, or a private file that the user asked for."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import msgspec

from .errors import ConfigError
from .folders import config_folder

SERVICE = "windlass"
FILE = "keys.json"

VARIABLES: dict[str, tuple[str, ...]] = {
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    "cerebras": ("CEREBRAS_API_KEY",),
    "deepseek": ("DEEPSEEK_API_KEY",),
    "fireworks": ("FIREWORKS_API_KEY",),
    "google": ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_ENTERPRISE"),
    "groq": ("GROQ_API_KEY",),
    "huggingface": ("HF_TOKEN",),
    "mistral": ("MISTRAL_API_KEY",),
    "moonshot": ("MOONSHOT_API_KEY",),
    "openai": ("OPENAI_API_KEY",),
    "openrouter": ("OPENROUTER_API_KEY",),
    "together": ("TOGETHER_API_KEY",),
    "xai": ("XAI_API_KEY",),
}
"""The vendors whose keys can be stored, each with the environment variables that come first."""

_ALIASES = {"openai-chat": "openai", "openai-responses": "openai"}


def stored_key(vendor: str) -> str | None:
    """The stored key of a vendor, if the environment has none and does not name another server for the vendor."""
    name = _ALIASES.get(vendor, vendor)
    if name not in VARIABLES or any(map(os.environ.get, (*VARIABLES[name], f"{name.upper()}_BASE_URL"))):
        return None
    return _from_keyring(name) or _read_file().get(name)


def how_to_store(model: str) -> str:
    """What to run to store a key for a model, to be added to an error that names other remedies."""
    vendor = model.partition(":")[0]
    name = _ALIASES.get(vendor, vendor)
    return f"; or store one with: windlass keys set {name}" if name in VARIABLES else ""


def place_of(vendor: str) -> str | None:
    """Where the key of a vendor is: an environment variable, the keyring or the file; None if there is none."""
    check_vendor(vendor)
    if (variable := next(filter(os.environ.get, VARIABLES[vendor]), None)) is not None:
        return f"environment ({variable})"
    if _from_keyring(vendor):
        return "keyring"
    return f"file ({_file()})" if vendor in _read_file() else None


def set_key(vendor: str, key: str, *, file: bool = False) -> str:
    """Store a key in the keyring, or with `file` in a file that only the user can read. Returns where it is."""
    check_vendor(vendor)
    if not key or not key.isprintable() or " " in key:
        raise ConfigError(f"the key of {vendor} must be one line of visible characters without spaces")
    if file:
        _write_file({**_read_file(), vendor: key})
        return f"file ({_file()})"
    other = f"set {VARIABLES[vendor][0]} in the environment, or store it in a file with --file"
    keyring = _keyring()
    if keyring is None:
        raise ConfigError(f"the keyring needs the extra 'keys': pip install 'windlass[keys]'; or {other}")
    if type(keyring.get_keyring()).__module__.startswith("keyrings.alt"):
        raise ConfigError(f"the keyring of this machine is a plain file in disguise; {other}")
    try:
        keyring.set_password(SERVICE, vendor, key)
    except Exception as error:  # backends raise whatever they like; none of it may hold the key
        raise ConfigError(f"this machine has no keyring that works ({type(error).__name__}); {other}") from None
    return "keyring"


def remove_key(vendor: str) -> list[str]:
    """Remove the stored key of a vendor. Returns where it was."""
    check_vendor(vendor)
    removed: list[str] = []
    keyring = _keyring()
    if keyring is not None and _from_keyring(vendor):
        keyring.delete_password(SERVICE, vendor)
        removed.append("keyring")
    stored = _read_file()
    if stored.pop(vendor, None) is not None:
        _write_file(stored)
        removed.append(f"file ({_file()})")
    return removed


def check_vendor(vendor: str) -> None:
    """Raise `ConfigError` if keys of this vendor cannot be stored."""
    if vendor not in VARIABLES:
        raise ConfigError(f"keys of {vendor!r} cannot be stored; vendors: {', '.join(VARIABLES)}")


def _keyring() -> Any:
    """The keyring library; None if it is not installed."""
    try:
        import keyring
    except ImportError:
        return None
    return keyring


def _from_keyring(vendor: str) -> str | None:
    keyring = _keyring()
    if keyring is None:
        return None
    try:
        found: str | None = keyring.get_password(SERVICE, vendor)
    except Exception:  # without a desktop, looking for a key raises, too
        return None
    return found


def _file() -> Path:
    return config_folder() / FILE


def _read_file() -> dict[str, str]:
    try:
        file = _file()
    except ConfigError:  # without a folder there is no file in it
        return {}
    try:
        if os.name == "posix" and stat.S_IMODE(file.stat().st_mode) & 0o077:
            raise ConfigError(f"the file of keys {file} can be read by others: chmod 600 it, and change the keys")
        return msgspec.json.decode(file.read_bytes(), type=dict[str, str])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"the file of keys {file} cannot be read ({type(error).__name__})") from None


def _write_file(stored: dict[str, str]) -> None:
    """Replace the file at once. Temporary files are made with mode 0600."""
    import tempfile

    file = _file()
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=FILE)
    try:
        with os.fdopen(handle, "wb") as temporary:
            temporary.write(msgspec.json.encode(stored))
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
