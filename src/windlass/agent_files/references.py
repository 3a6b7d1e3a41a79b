"""Finds what a file or a person names as `module:name`."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from .problems import suggestion


class CannotLoad(Exception):
    """A module or a name in it could not be loaded. The message tells the user why."""


def load_reference(reference: str, folder: Path) -> Any:
    """The value of `module:name`. Modules in the folder are found after installed ones."""
    where, _, attribute = reference.partition(":")
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    module = load_module(where)
    found: Any = module
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            known = [one for one in vars(module) if not one.startswith("_")][:20]
            raise CannotLoad(f"module {where!r} has no {attribute!r}{suggestion(attribute, known)}") from None
    return found


def load_module(name: str) -> ModuleType:
    """Import a module by name."""
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", name):
        raise CannotLoad(f"{name!r} is neither the name of a module nor the path of a Python file")
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise CannotLoad(f"there is no module {error.name!r} here or among installed packages") from None
        raise import_error(name, error) from error
    except (Exception, SystemExit) as error:
        raise import_error(name, error) from error


def import_error(where: str, error: BaseException) -> CannotLoad:
    """The error for code that failed while it was imported."""
    return CannotLoad(f"{where!r} cannot be imported: {describe_error(error)}")


def describe_error(error: BaseException) -> str:
    """An error of the user's code, with the line that raised it."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    at = "" if traceback is None else f" ({traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno})"
    return f"{type(error).__name__}: {error}{at}"
