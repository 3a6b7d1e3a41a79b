"""Finds the hooks of a project: settings of the user, the project and plugins, and whether the user trusts them."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import Struct, structs

from windlass.trust import is_trusted, is_trusted_content, trust

from .settings import Handler, NotSettings, Problem, Settings, Source, decode_settings, read_settings, settings_of

PROJECT_FILES = ("settings.json", "settings.local.json")
SCRIPTS = frozenset(
    {
        ".sh", ".bash", ".zsh", ".fish", ".py", ".js", ".mjs", ".cjs", ".ts", ".mts", ".rb", ".pl", ".php", ".lua",
        ".ps1", ".cmd", ".awk", ".jq", ".go", ".swift",
    }
)  # fmt: skip
"""The endings of files with code."""


Stamp: TypeAlias = tuple[int, ...]


class Places(Struct, frozen=True):
    """Where to look: the project, the user's folder for Claude Code, and the folder of the organisation."""

    project: Path
    user: Path
    managed: Path
    named: tuple[Path | Mapping[str, Any], ...] = ()
    plugins: tuple[Path, ...] = ()
    found: bool = True
    """Whether settings that were not named count."""

    def only_named(self) -> Places:
        """The same without settings that nobody named."""
        return structs.replace(self, found=False)

    @classmethod
    def of(
        cls,
        project: str | os.PathLike[str],
        *,
        user: str | os.PathLike[str] | None = None,
        named: Sequence[str | os.PathLike[str] | Mapping[str, Any]] = (),
        plugins: Sequence[str | os.PathLike[str]] = (),
    ) -> Places:
        """The places for a project. Without `user`, it is `CLAUDE_CONFIG_DIR` or `~/.claude`."""
        home = os.environ.get("CLAUDE_CONFIG_DIR") or os.path.join(os.path.expanduser("~"), ".claude")
        return cls(
            Path(os.path.realpath(project)),
            Path(user if user is not None else home).expanduser().absolute(),
            managed_folder(),
            tuple([one if isinstance(one, Mapping) else Path(one).absolute() for one in named]),
            tuple([Path(one).absolute() for one in plugins]),
        )


class Found(Struct, frozen=True):
    """All hooks of a project that may run, and what keeps others from running.

    - `handlers`: the hooks in the order of their settings: managed, named, local, project, user, plugins
    - `problems`: entries and files that have no effect
    - `untrusted`: files of the project that the user has not trusted as they are now
    - `scripts`: the files of the project that each of its hooks runs, as they were when their trust was checked
    - `http_urls`, `http_env`: allowlists for HTTP hooks
    - `env`: variables that settings give to hooks
    """

    handlers: tuple[Handler, ...] = ()
    problems: tuple[Problem, ...] = ()
    untrusted: tuple[Path, ...] = ()
    scripts: Mapping[str, Mapping[Path, Stamp]] = {}
    http_urls: tuple[str, ...] | None = None
    http_env: tuple[str, ...] | None = None
    env: Mapping[str, str] = {}


def managed_folder() -> Path:
    """The folder with the settings of an organisation."""
    if sys.platform == "darwin":
        return Path("/Library/Application Support/ClaudeCode")
    return Path(r"C:\Program Files\ClaudeCode" if sys.platform == "win32" else "/etc/claude-code")


def find_hooks(places: Places, *, trusts: bool = False) -> Found:
    """The hooks of a project. With `trusts`, those of the project count although the user has not trusted them."""
    return _Finder(places, trusts).find()


class _Finder:
    """Reads all settings of a project once."""

    def __init__(self, places: Places, trusts: bool) -> None:
        self._places = places
        self._trusts = trusts
        self._problems: list[Problem] = []
        self._untrusted: list[Path] = []
        self._scripts: dict[str, dict[Path, Stamp]] = {}

    def find(self) -> Found:
        places = self._places
        named = [*self._named()]
        managed, own, user = self._unnamed() if places.found else ([], [], [])
        levels = [*managed, *named, *own, *user]
        only_managed = any(one.managed_only for one in managed)
        plugins = [*self._plugins(managed if only_managed else levels, () if only_managed else places.plugins)]
        disabled = next((one.disabled for one in levels if one.disabled is not None and one not in managed), False)
        disabled = disabled or any(one.disabled for one in managed)
        used = managed if disabled else [*(managed if only_managed else levels), *plugins]
        problems = [problem for one in [*levels, *plugins] for problem in one.problems]
        return Found(
            tuple([handler for one in used for handler in one.handlers]),
            (*self._problems, *problems),
            tuple(self._untrusted),
            self._scripts,
            _joined([one.http_urls for one in levels]),
            _joined([one.http_env for one in levels]),
            {name: text for one in reversed(levels) for name, text in one.env.items()},
        )

    def _unnamed(self) -> tuple[list[Settings], list[Settings], list[Settings]]:
        """The settings of the organisation, the project and the user."""
        places = self._places
        claude = places.project / ".claude"
        own = [] if _same(claude, places.user) else [*self._project(claude)]
        return [*self._managed()], own, [*self._file(Source("user", places.user / "settings.json"))]

    def _managed(self) -> Iterator[Settings]:
        folder = self._places.managed
        drop_in = folder / "managed-settings.d"
        for path in [folder / "managed-settings.json", *sorted(drop_in.glob("*.json") if drop_in.is_dir() else ())]:
            yield from self._file(Source("managed", path))

    def _named(self) -> Iterator[Settings]:
        for at, given in enumerate(self._places.named):
            if isinstance(given, Mapping):
                yield settings_of(given, Source("named", Path(f"settings {at + 1}")))
            elif given.is_file():
                yield from self._file(Source("named", given))
            else:
                self._problems.append(Problem(str(given), "file", "there is no such file"))

    def _project(self, folder: Path) -> Iterator[Settings]:
        for name in reversed(PROJECT_FILES):
            source = Source("local" if "local" in name else "project", folder / name)
            content = _content(source.path)
            if content is None:
                continue
            if not self._trusts and not is_trusted_content(source.path, content):
                self._untrusted.append(source.path)
                continue
            for settings in self._read(content, source):
                yield self._with_trusted_scripts(settings)

    def _with_trusted_scripts(self, settings: Settings) -> Settings:
        """The settings without the hooks whose scripts are not trusted."""
        kept: list[Handler] = []
        for handler in settings.handlers:
            scripts = () if self._trusts else scripts_of(handler, self._places.project)
            stamps = {path: stamp_of(path) for path in scripts}
            changed = [path for path in scripts if not is_trusted(path)]
            self._untrusted += [path for path in changed if path not in self._untrusted]
            if not changed:
                kept.append(handler)
                self._scripts[f"{settings.source.path}:{handler.place}"] = stamps
        return structs.replace(settings, handlers=tuple(kept))

    def _file(self, source: Source) -> Iterator[Settings]:
        content = _content(source.path)
        if content is not None:
            yield from self._read(content, source)

    def _read(self, content: bytes, source: Source) -> Iterator[Settings]:
        try:
            yield read_settings(content, source)
        except NotSettings as error:
            self._problems.append(Problem(str(source), "file", f"none of its hooks runs: {error}", "mend the file"))

    # ------------------------------------------------------------ plugins

    def _plugins(self, levels: Iterable[Settings], folders: Iterable[Path]) -> Iterator[Settings]:
        enabled: dict[str, bool] = {}
        options: dict[str, dict[str, str]] = {}
        for settings in reversed([*levels]):
            enabled |= settings.plugins
            for name, given in settings.options.items():
                options.setdefault(name, {}).update(given)
        installed = {name: path for name, path in self._installed().items() if enabled.get(name)}
        for name in enabled:
            if enabled[name] and name not in installed:
                self._problems.append(
                    Problem(name, "enabledPlugins", "this plugin is not installed", "name its folder with plugins=[…]")
                )
        named = {path.name: path for path in folders}
        for name, path in [*named.items(), *installed.items()]:
            yield from self._plugin(name.partition("@")[0], path, options.get(name, {}))

    def _installed(self) -> dict[str, Path]:
        """The folders of the plugins that the user has installed, by `plugin@marketplace`."""
        content = _content(self._places.user / "plugins" / "installed_plugins.json")
        try:
            listed = decode_settings(content)["plugins"] if content is not None else {}
            found = {name: entry[0] if isinstance(entry, list) else entry for name, entry in listed.items()}
            return {name: Path(entry["installPath"]) for name, entry in found.items()}
        except (NotSettings, LookupError, TypeError, AttributeError):
            self._problems.append(Problem("installed_plugins.json", "file", "it cannot be read: no plugin is used"))
            return {}

    def _plugin(self, folder_name: str, root: Path, options: Mapping[str, str]) -> Iterator[Settings]:
        manifest = self._object(root / ".claude-plugin" / "plugin.json")
        given = manifest.get("name")
        name = given if isinstance(given, str) and given else folder_name
        default = root / "hooks" / "hooks.json"
        files: list[Path] = [default] if default.is_file() else []
        hooks = manifest.get("hooks")
        for one in hooks if isinstance(hooks, list) else [hooks]:
            if isinstance(one, str):
                path = Path(os.path.normpath(root / one))
                files += [path] if path not in files else []
            elif isinstance(one, dict):
                inline = one if "hooks" in one else {"hooks": one}
                source = Source("plugin", root / ".claude-plugin" / "plugin.json", name, root, options)
                yield settings_of(inline, source)
        for path in files:
            if _content(path) is None:
                self._problems.append(Problem(str(path), "file", f"plugin {name!r} names this file; it is not there"))
            yield from self._file(Source("plugin", path, name, root, options))

    def _object(self, path: Path) -> dict[str, Any]:
        content = _content(path)
        try:
            return {} if content is None else decode_settings(content)
        except NotSettings as error:
            self._problems.append(Problem(str(path), "file", str(error)))
            return {}


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _joined(lists: Iterable[tuple[str, ...] | None]) -> tuple[str, ...] | None:
    given = [one for one in lists if one is not None]
    return tuple([item for one in given for item in one]) if given else None


# ---------------------------------------------------------------- trust


def stamp_of(path: Path) -> Stamp:
    """What tells that a file may have changed: its times, its size and its number; empty if it is gone."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def scripts_of(handler: Handler, project: Path) -> tuple[Path, ...]:
    """The files in the project that a command runs, as far as its words tell."""
    if handler.type != "command":
        return ()
    text = handler.command
    for name in ("CLAUDE_PROJECT_DIR", "PWD"):
        text = re.sub(rf"\$\{{{name}(?:[:-][^}}]*)?\}}|\${name}\b", str(project).replace("\\", "/"), text)
    try:
        words = shlex.split(text, comments=False)
    except ValueError:
        words = text.split()
    words += [one.replace("${CLAUDE_PROJECT_DIR}", str(project)) for one in handler.args or ()]
    pieces = {piece for word in words for piece in (word, *re.split(r"[;&|<>()\s\"'=]+", word)) if piece}
    pieces |= {f"{name.replace('.', '/')}.py" for name in re.findall(r"-m\s+([\w.]+)", f"{text} {' '.join(words)}")}
    inner = [_inside(project, piece) for piece in pieces]
    folders = [project, *[path for path in inner if _is_below(path, project) and os.path.isdir(path)]]
    places = {_inside(folder, piece) for folder in folders for piece in pieces}
    return tuple(sorted([path for path in places if _is_below(path, project) and _is_script(path)]))


def _inside(folder: Path, name: str) -> Path:
    return Path(os.path.normpath(folder / name))


def _is_below(path: Path, folder: Path) -> bool:
    return folder in path.parents


def _is_script(path: Path) -> bool:
    """Whether a file is code: by its name, its mode or its first bytes."""
    try:
        if not path.is_file():
            return False
        if path.suffix in SCRIPTS or os.access(path, os.X_OK):
            return True
        with path.open("rb") as file:
            return file.read(2) == b"#!"
    except (OSError, ValueError):
        return False


def project_files(project: Path) -> list[Path]:
    """The settings files of a project with hooks or plugins in them, and the scripts that they run."""
    found: dict[Path, None] = {}
    for name in PROJECT_FILES:
        path = project / ".claude" / name
        content = _content(path)
        if content is None:
            continue
        found[path] = None
        try:
            settings = read_settings(content, Source("project", path))
        except NotSettings:
            continue
        for handler in settings.handlers:
            found |= dict.fromkeys(scripts_of(handler, project))
    return list(found)


def trust_project(project: str | os.PathLike[str]) -> list[Path]:
    """Trust the settings files of a project and the scripts that their hooks run, as they are now."""
    files = project_files(Path(os.path.realpath(project)))
    for path in files:
        trust(path)
    return files


def json_settings(text: str) -> Mapping[str, Any]:
    """Settings that were given as JSON instead of a file. Raises `NotSettings`."""
    try:
        return decode_settings(text.encode())
    except UnicodeEncodeError:
        raise NotSettings("it has invalid characters") from None


__all__ = ["Found", "Places", "find_hooks", "json_settings", "project_files", "scripts_of", "trust_project"]
