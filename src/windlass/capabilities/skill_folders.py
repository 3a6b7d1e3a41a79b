"""Skills as folders: SKILL.md with front matter and instructions, and further files that stay in their folder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from posixpath import normpath
from typing import Any

from msgspec import Struct

from windlass.errors import ConfigError
from windlass.matching import parse_rule

from .front_matter import read_front_matter

FILE = "SKILL.md"
KEYS = ("name", "description", "license", "compatibility", "allowed-tools", "metadata", "disable-model-invocation")
LARGEST = 1_000_000
"""How many bytes a file may have that is read."""
DEPTH = 4
"""How deep below a given folder skills are looked for."""
LONGEST = 1024
"""How many characters a description may have, as the published format says."""
LISTED = 200
"""How many files of a skill are listed."""
NAMED = 30
"""How many of them an error names."""
_NAME = re.compile(r"""\w[^\x00-\x1f<>"'`]{0,63}""")
_TOOLS = re.compile(r"[^\s,()]+(?:\([^()]*\))?")


class Skill(Struct, frozen=True):
    """A skill: its `name`, its `description`, and the `folder` with its instructions and files.

    `license`, `compatibility` and `metadata` are what its front matter says. `allowed_tools` are the rules there, or
    None if there are none. A skill that is not `offered` is only for
    people: its author has disabled that models call it.
    """

    name: str
    description: str
    folder: str
    license: str = ""
    compatibility: str = ""
    allowed_tools: tuple[str, ...] | None = None
    metadata: Mapping[str, str] = {}
    offered: bool = True

    def instructions(self) -> str:
        """The text of SKILL.md after its front matter, as it is now."""
        return read_front_matter(_read(Path(self.folder, FILE)), ())[1]

    def files(self) -> list[str]:
        """The other files of the skill, as paths in its folder."""
        return list(islice(self._own_files(), LISTED))

    def _own_files(self) -> Iterator[str]:
        for place, folders, names in os.walk(self.folder):
            folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
            paths = [os.path.relpath(os.path.join(place, name), self.folder) for name in sorted(names)]
            yield from [path.replace(os.sep, "/") for path in paths if self._is_own(path)]

    def _is_own(self, path: str) -> bool:
        if path == FILE or os.path.basename(path).startswith("."):
            return False
        whole = os.path.join(self.folder, path)
        return os.path.isfile(whole) and _is_inside(whole, self.folder)

    def read(self, path: str) -> str:
        """The text of a file of the skill. A path that leaves the folder, or is no text file, raises `ValueError`."""
        parts = re.split(r"[/\\]", path)
        if not path or os.path.isabs(path) or path[0] in "~/\\" or ".." in parts or "\0" in path or ":" in parts[0]:
            raise ValueError(f"{path!r} is not a path within the folder of skill {self.name!r}")
        whole = os.path.join(self.folder, path)
        if not _is_inside(whole, self.folder):
            raise ValueError(f"{path!r} is a link that leaves the folder of skill {self.name!r}")
        return _read(Path(whole if os.path.isfile(whole) else os.path.join(self.folder, self._alike(path))))

    def _alike(self, path: str) -> str:
        """The file whose path differs only in case: instructions say FORMS.md where the file is forms.md."""
        files, wanted = list(self._own_files()), normpath(path).casefold()
        found = [file for file in files if file.casefold() == wanted]
        if len(found) != 1:
            named = f"; its files are {', '.join(files[:NAMED])}" if files else ""
            raise ValueError(f"skill {self.name!r} has no file {path!r:.200}{named}")
        return found[0]


def find_skills(folders: Iterable[str | os.PathLike[str]]) -> tuple[dict[str, Skill], dict[str, str]]:
    """The skills in some folders by name, and the folders that were skipped, with the reasons."""
    skills: dict[str, Skill] = {}
    skipped: dict[str, str] = {}
    for given in folders:
        root = os.path.realpath(given)
        if not os.path.isdir(root):
            raise ConfigError(f"Skills: {os.fspath(given)!r} is not a folder")
        for place in _places(root, skipped):
            try:
                skill = _load(place)
                if (first := skills.get(skill.name)) is not None:
                    raise ValueError(f"the name {skill.name!r} is that of the skill in {first.folder}")
                skills[skill.name] = skill
            except (OSError, ValueError) as error:
                skipped[place] = str(error)
    return skills, skipped


def _places(root: str, skipped: dict[str, str], depth: int = 0) -> Iterator[str]:
    """The folders with a SKILL.md, in order. None are looked for inside another one."""
    if os.path.lexists(os.path.join(root, FILE)):
        yield root
        return
    names = sorted(os.listdir(root))
    if misspelt := [name for name in names if name.lower() == FILE.lower()]:
        skipped[root] = f"its {misspelt[0]} must be called {FILE}"
    for name in names if depth < DEPTH else ():
        place = os.path.join(root, name)
        if name.startswith(".") or name == "node_modules" or not os.path.isdir(place):
            continue
        if not _is_inside(place, root):
            skipped[place] = "it is a link that leaves the folder; pass its target to Skills"
        elif not os.path.islink(place):
            yield from _places(place, skipped, depth + 1)


def _load(folder: str) -> Skill:
    path = os.path.join(folder, FILE)
    if not _is_inside(path, folder):
        raise ValueError(f"its {FILE} is a link that leaves the folder")
    front, _ = read_front_matter(_read(Path(path)), KEYS)
    name, description = _text(front, "name"), " ".join(_text(front, "description").split())
    if not _NAME.fullmatch(name):
        what = f"its name {name!r}" if name else "it has no name; a name"
        raise ValueError(f"{what} must have 1 to 64 characters, such as letters, digits and hyphens")
    if not description:
        raise ValueError("it has no description, so a model cannot know when to use it")
    if len(description) > LONGEST:
        raise ValueError(f"its description has {len(description):,} characters; the format allows {LONGEST:,}")
    metadata = front.get("metadata", {})
    return Skill(
        name,
        description,
        folder,
        _text(front, "license"),
        _text(front, "compatibility"),
        _rules(front["allowed-tools"]) if "allowed-tools" in front else None,
        metadata if isinstance(metadata, dict) else {},
        _text(front, "disable-model-invocation").lower() not in ("true", "yes", "on"),
    )


def _text(front: Mapping[str, Any], key: str) -> str:
    value = front.get(key, "")
    if not isinstance(value, str):
        raise ValueError(f"its {key} must be a text")
    return value.strip()


def _rules(given: object) -> tuple[str, ...]:
    """The rules of `allowed-tools`: a list, or a text with commas or spaces between them."""
    texts = given if isinstance(given, list) else [given]
    rules: list[str] = []
    for text in texts:
        if not isinstance(text, str):
            raise ValueError("its allowed-tools must be names of tools")
        rules += _TOOLS.findall(text)
        if _TOOLS.sub("", text).strip(" ,\t\n"):
            raise ValueError(f"its allowed-tools cannot be read: {text!r}")
    for rule in rules:
        try:
            parse_rule(rule)
        except ConfigError as error:
            raise ValueError(f"its allowed-tools: {error}") from None
    return tuple(rules)


def _is_inside(path: str, folder: str) -> bool:
    """Whether a path is inside a folder, once its links are followed."""
    real, root = os.path.realpath(path), os.path.realpath(folder)
    return real == root or real.startswith(root.rstrip(os.sep) + os.sep)


def _read(path: Path) -> str:
    if not path.is_file():  # a pipe would be waited for
        raise ValueError(f"{path.name} is not a file")
    if (size := path.stat().st_size) > LARGEST:
        raise ValueError(f"{path.name} has {size:,} bytes; at most {LARGEST:,} are read")
    data = path.read_bytes()
    try:
        if b"\0" in data:
            raise ValueError
        return data.decode("utf-8-sig")
    except ValueError:
        raise ValueError(f"{path.name} is not a text in UTF-8 ({size:,} bytes)") from None
