"""The user's own folders: where sessions, policies and trusted files are kept."""

from __future__ import annotations

import os
from pathlib import Path

from .errors import ConfigError

HOME = "WINDLASS_HOME"
"""The environment variable that puts all folders of the user below one."""


def data_folder() -> Path:
    """The folder for sessions and histories, made on first use and readable by the user alone."""
    return _folder("data")


def config_folder() -> Path:
    """The folder for rules, keys and the list of trusted files, made on first use and readable by the user alone."""
    return _folder("config")


def _folder(kind: str) -> Path:
    home = os.environ.get(HOME)
    if home:
        folder = Path(home).expanduser().absolute() / kind
    else:
        from platformdirs import user_config_path, user_data_path

        folder = (user_data_path if kind == "data" else user_config_path)("windlass", appauthor=False)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the folder {folder} cannot be made: {error}; set {HOME} to another place") from error
    return folder
