"""Makes an agent of the checked content of an agent file, and reports all that does not fit."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from windlass.agent import Agent
from windlass.capabilities import Fallback
from windlass.criteria import ActiveTimeLimit, CostLimit, TokenLimit
from windlass.errors import ConfigError
from windlass.folders import data_folder
from windlass.models import VENDORS, check_model_name, open_model
from windlass.tools import toolset

from .arguments import MISSING, construct
from .documents import Document, Read, read_document
from .installed import find_capability
from .named_hooks import NamedHook, read_hook
from .positions import KeyPath
from .references import CannotLoad, describe_error, load_reference
from .schema import CAPABILITY, CRITERIA, agent_shape, subagent_shape

_LIMITS = {"tokens": TokenLimit, "usd": CostLimit, "seconds": ActiveTimeLimit}
_OPTION = re.compile(r" has no option '(\w+)'")
_MAX_FILES = 8
"""How deep files of sub-agents may refer to one another."""


class Builder:
    """Makes the agent of one file, or of one table in it, which `path` names."""

    def __init__(self, document: Document, read: Read, path: KeyPath = (), above: tuple[Path, ...] = ()) -> None:
        self.document = document
        self.read = read
        self.path = path
        self.above = (*above, document.path) if not path else above

    def build(self, data: Mapping[str, Any], name: str) -> Agent[Any, Any] | None:
        """The agent; None if there is any problem in this file or in another one."""
        problems = self.document.problems
        before = len(problems)
        shape = agent_shape() if not self.path else subagent_shape()
        right = shape.check_keys(data, self.path, self.document)
        model = self._model(right["model"], "model") if "model" in right else MISSING
        fallbacks = [self._model(one, "fallbacks", at) for at, one in enumerate(right.get("fallbacks", ()))]
        options = self._options(right)
        capabilities = [*self._brought_tools(right), *self._capabilities(right.get("capabilities", {}))]
        hooks = list(self._hooks(right.get("hooks", ())))
        if len(problems) > before:
            return None
        agent = self._agent(model, {"name": name, **options})
        if agent is None:
            return None
        if fallbacks:
            self._install(agent, Fallback(*fallbacks), None, None, "fallbacks")
        for place, capability, band in capabilities:
            self._install(agent, capability, place[-1], band, *place)
        for hook in hooks:
            hook.register(agent, self.document)
        return None if len(problems) > before else agent

    def _hooks(self, given: Iterable[Mapping[str, Any]]) -> Iterable[NamedHook]:
        for at, one in enumerate(given):
            hook = read_hook(one, (*self.path, "hooks", at), self.document)
            if hook is not None:
                yield hook

    def _agent(self, model: Any, options: Mapping[str, Any]) -> Agent[Any, Any] | None:
        try:
            return Agent(model, **options)
        except ConfigError as error:
            named = re.match(r"Agent\((\w+)=", str(error))
            self._problem(str(error), *((named[1],) if named else ("settings",) if "setting" in str(error) else ()))
            return None

    def _options(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of the agent but for its model and capabilities."""
        limits = dict(data.get("limits", {}))
        own = {key: data[key] for key in ("name", "settings", "busy", "unmatched") if key in data}
        own |= {key: value for key, value in limits.items() if key not in CRITERIA}
        criteria = [_LIMITS[key](limits[key]) for key in CRITERIA if key in limits]
        tools = [self._tool(one, at) for at, one in enumerate(data.get("tools", ()))]
        tools += [self._subagent(key, one) for key, one in data.get("subagents", {}).items()]
        if "store" in data:
            own["store"] = store_address(data["store"], self.document.folder)
        if "output" in data:
            given = data["output"]
            own["output"] = self._reference(given, "output") if isinstance(given, str) else given
        return {**own, "criteria": criteria, "tools": tools, "system": self._system(data), "secrets": _secrets(data)}

    def _tool(self, name: str, at: int) -> Any:
        found = self._reference(name, "tools", at)
        try:
            return found if found is MISSING else next(iter(toolset([found]).values()))
        except ConfigError as error:
            self._problem(str(error), "tools", at)
            return MISSING

    def _system(self, data: Mapping[str, Any]) -> str:
        if "system_file" not in data:
            return str(data.get("system", ""))
        if "system" in data:
            self._problem("give either system or system_file", "system_file")
            return ""
        try:
            return self.read(self.document.folder / data["system_file"]).decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = (error.strerror if isinstance(error, OSError) else "it is not valid UTF-8") or str(error)
            self._problem(f"{data['system_file']!r} cannot be read: {reason}", "system_file")
            return ""

    def _model(self, given: Any, *key: str | int) -> Any:
        """A model. A text is opened by the agent, which then knows it by this text."""
        table = {"use": given} if isinstance(given, str) else given
        options: dict[str, Any] = {name: value for name, value in table.items() if name != "use"}
        vendor = table["use"].partition(":")[0]
        place = key if isinstance(given, str) else (*key, "use")
        if "api_key" in options:
            self._problem(f"keys do not belong into files: run `windlass keys set {vendor}`", *key, "api_key")
            return MISSING
        try:
            if isinstance(given, str):
                check_model_name(given)
                return given
            if vendor in VENDORS:
                return open_model(table["use"], **options)
        except ConfigError as error:
            wrong = _OPTION.search(str(error))
            self._problem(str(error), *((*key, wrong[1]) if wrong else place))
            return MISSING
        found = self._reference(table["use"], *place)
        if found is MISSING or (hasattr(found, "reply") and not isinstance(found, type) and not options):
            return found
        return construct(found, options, (*self.path, *key), self.document)

    def _brought_tools(self, data: Mapping[str, Any]) -> Iterable[tuple[tuple[str, ...], Any, Any]]:
        """The capabilities of the tables `workspace` and `mcp`. Their folders are relative to the file."""
        folder = self.document.folder
        if "workspace" in data:
            from windlass.tools import Workspace

            given = {"root": ".", **data["workspace"]}
            yield ("workspace",), construct(Workspace, given, (*self.path, "workspace"), self.document), None
        for name, table in data.get("mcp", {}).items():
            from windlass.mcp import MCP

            path = (*self.path, "mcp", name)
            given = {**table, "cwd": str(folder / str(table.get("cwd", ".")))} if "command" in table else table
            yield ("mcp", name), construct(MCP, given, path, self.document, first=(name,)), None

    def _capabilities(self, given: Mapping[str, Any]) -> Iterable[tuple[tuple[str, ...], Any, Any]]:
        for key, table in given.items():
            path = (*self.path, "capabilities", key)
            used = "use" in table
            try:
                kind = find_capability(table.get("use", key), self.document.folder)
            except CannotLoad as error:
                self.document.add_problem((*path, "use") if used else path, str(error))
                continue
            options = {name: value for name, value in table.items() if name not in CAPABILITY.keys}
            made = self._capability(kind, options, table.get("load"), path)
            if made is not MISSING:
                yield ("capabilities", key), made, table.get("band")

    def _capability(self, kind: Any, options: dict[str, Any], load: str | None, path: KeyPath) -> Any:
        reserved = ("use", "band", "load") if hasattr(kind, "load") else ("use", "band")
        if load is None:
            if not isinstance(kind, type) and hasattr(kind, "install") and not options:
                return kind
            return construct(kind, options, path, self.document, reserved=reserved)
        if not hasattr(kind, "load"):
            name = getattr(kind, "__name__", "this capability")
            self.document.add_problem((*path, "load"), f"{name} cannot be loaded from a file")
            return MISSING
        file = self.document.folder / load
        try:
            self.read(file)
        except OSError as error:
            self.document.add_problem((*path, "load"), f"{load!r} cannot be read: {error.strerror or error}")
            return MISSING
        return construct(kind.load, options, path, self.document, reserved=reserved, first=(file,))

    def _install(self, agent: Agent[Any, Any], capability: Any, name: str | None, band: Any, *key: str) -> None:
        try:
            agent.with_capability(capability, name=name, band=band)
        except ConfigError as error:
            self._problem(str(error), *key)
        except Exception as error:
            self._problem(f"cannot be installed: {describe_error(error)}", *key)

    def _subagent(self, name: str, given: Mapping[str, Any]) -> Any:
        """A sub-agent as a tool, named as its table is."""
        path = (*self.path, "subagents", name)
        options = {key: given[key] for key in ("description", "share") if key in given}
        if "file" in given:
            made = self._file(name, self.document.folder / given["file"], path)
        else:
            below = Builder(self.document, self.read, path, self.above)
            made = below.build(given, name)
        if made is None:
            return MISSING
        try:
            return made.as_tool(name, **options)
        except ConfigError as error:
            self.document.add_problem(path, str(error))
            return MISSING

    def _file(self, name: str, file: Path, path: KeyPath) -> Agent[Any, Any] | None:
        place = (*path, "file")
        if file.resolve() in [one.resolve() for one in self.above]:
            self.document.add_problem(
                place, "this file is an agent above this one: an agent cannot be its own sub-agent"
            )
            return None
        if len(self.above) >= _MAX_FILES:
            self.document.add_problem(place, f"agent files are nested more than {_MAX_FILES} deep")
            return None
        if not file.is_file():
            self.document.add_problem(place, f"there is no file {str(file)!r}")
            return None
        document = read_document(file, self.read, self.document.problems)
        if document.data is None:
            return None
        return Builder(document, self.read, above=self.above).build({"name": name, **document.data}, name)

    def _reference(self, name: str, *key: str | int) -> Any:
        try:
            return load_reference(name, self.document.folder)
        except CannotLoad as error:
            self._problem(str(error), *key)
            return MISSING

    def _problem(self, message: str, *key: str | int) -> None:
        self.document.add_problem((*self.path, *key), message)


def store_address(given: str, folder: Path) -> str:
    """The address of a store: a relative file is in this folder, and `user` is a file in the user's data folder."""
    if given == "user":
        return f"sqlite:///{data_folder() / 'sessions.db'}"
    head, scheme, file = given.partition("sqlite:///")
    if not scheme or head or not file:
        return given
    return f"sqlite:///{folder / Path(file).expanduser()}"


def _secrets(data: Mapping[str, Any]) -> list[str]:
    """The values of the environment variables that a file names; those that are not set have nothing to mask."""
    return [value for name in data.get("secrets", ()) if (value := os.environ.get(name))]
