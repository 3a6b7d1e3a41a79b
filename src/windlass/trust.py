"""Which files that were found in a folder the user trusts: by path, and by a digest of the whole file."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import msgspec

from .errors import ConfigError
from .folders import config_folder

FILE = "trusted.json"


def digest(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a file's content."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {error}") from error


def is_trusted(path: str | os.PathLike[str]) -> bool:
    """Whether the user has trusted this file with the content that it has now."""
    return _read().get(_key(path)) == digest(path)


def is_trusted_content(path: str | os.PathLike[str], content: bytes) -> bool:
    """Whether the user has trusted the file at this path with this content: for a caller that has read it already."""
    return _read().get(_key(path)) == hashlib.sha256(content).hexdigest()


def trust(path: str | os.PathLike[str]) -> str:
    """Trust a file as it is now, and return the digest. If it changes, it is no longer trusted."""
    found = digest(path)
    _write({**_read(), _key(path): found})
    return found


def distrust(path: str | os.PathLike[str]) -> bool:
    """Trust a file no longer. Returns whether it was in the list."""
    listed = _read()
    known = listed.pop(_key(path), None) is not None
    if known:
        _write(listed)
    return known


def trusted() -> dict[str, str]:
    """The trusted files by path, with the digests that they had."""
    return _read()


def _key(path: str | os.PathLike[str]) -> str:
    return str(Path(path).resolve())


def _read() -> dict[str, str]:
    file = config_folder() / FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, str])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"the list of trusted files {file} cannot be read: {error}") from error


def _write(listed: dict[str, str]) -> None:
    """Replace the list at once, so that a crash leaves the old one or the new one."""
    file = config_folder() / FILE
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=FILE)
    try:
        with os.fdopen(handle, "wb") as temporary:
            temporary.write(msgspec.json.format(msgspec.json.encode(listed), indent=1) + b"\n")
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
