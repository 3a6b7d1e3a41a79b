"""Which calls a skill allows: the rules of its front matter, in the names of the agent's tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from windlass.matching import name_test, parse_rule

from .permissions import Permissions
from .skill_folders import Skill

ALIASES: Mapping[str, tuple[str, ...]] = {
    "bash": ("bash", "shell", "sh", "run_command"),
    "read": ("read", "read_file"),
    "write": ("write", "write_file"),
    "edit": ("edit", "edit_file", "multi_edit"),
    "glob": ("glob", "find_files", "list_files"),
    "grep": ("grep", "search_text"),
    "webfetch": ("web_fetch", "fetch", "fetch_url"),
    "websearch": ("web_search",),
}
"""What the tools that published skills name are called elsewhere."""


def permissions_of(
    skills: Iterable[Skill], tools: Iterable[str], names: Mapping[str, str], shells: Mapping[str, str] | None
) -> Permissions:
    """Permissions that allow what one of the skills lists, and deny the rest."""
    known = list(tools)
    rules = [rule for skill in skills for text in skill.allowed_tools or () for rule in _translate(text, known, names)]
    return Permissions(allow=list(dict.fromkeys(rules)), unmatched="deny", shells=shells)


def unknown_tools(skill: Skill, tools: Iterable[str], names: Mapping[str, str]) -> list[str]:
    """The rules of a skill that match no tool of an agent."""
    known = list(tools)
    return [text for text in skill.allowed_tools or () if not _meant(parse_rule(text).tool, known, names)]


def _translate(text: str, tools: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """A rule for each tool of the agent that it may mean; as it is if there is none, for tools that come later."""
    written = parse_rule(text).tool
    return [text.replace(written, tool, 1) for tool in _meant(written, tools, names)] or [text]


def _meant(written: str, tools: Sequence[str], names: Mapping[str, str]) -> list[str]:
    if written in names:
        return [names[written]]
    test = name_test(written)
    if exact := [tool for tool in tools if test(tool)]:
        return [written] if len(exact) > 1 else exact
    plain = _plain(written)
    alike = {plain, *[_plain(alias) for alias in ALIASES.get(plain, ())]}
    return [tool for tool in tools if _plain(tool) in alike]


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()
