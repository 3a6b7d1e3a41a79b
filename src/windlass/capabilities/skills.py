"""Skills: folders with a SKILL.md that the model uses on demand, with the tools that they allow."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from windlass.decisions import Deny
from windlass.errors import ConfigError, ToolError
from windlass.events import SessionStarting, ToolCalling
from windlass.matching import name_test
from windlass.slots import Slot
from windlass.tools import tool
from windlass.turns import Turn

from .excerpts import excerpt
from .option_types import check_types
from .options import require, require_name
from .permissions import Permissions
from .selected_tools import turn_number
from .skill_folders import Skill, find_skills
from .skill_tools import permissions_of, unknown_tools

if TYPE_CHECKING:
    from windlass import Assembly, Hooks, Tool

HEADING = (
    "You have skills: folders with instructions for certain tasks. If one of them is for the task at hand, call "
    "use_skill with its name before you begin, and do as it says."
)
MUCH = 40_000
"""From how many characters on `explain` warns of the list of skills."""


class ActiveSkills(Struct, frozen=True):
    """The skills that the model uses: their `names`, and the `turn` that they are for."""

    turn: str = ""
    names: tuple[str, ...] = ()

    def merge(self, new: ActiveSkills) -> ActiveSkills:
        """What two calls of one step have set."""
        return new if new.turn != self.turn else ActiveSkills(self.turn, tuple(dict.fromkeys(self.names + new.names)))


class Skills:
    """Offer the skills in some `folders`: name and description in the system text, the rest on demand.

    A folder is a skill, with a SKILL.md, or has skills below it. The model reads the instructions with `use_skill` and
    further files with `read_skill_file`. A skill is active from the step after `use_skill` until the turn ends. While
    skills with `allowed-tools` are active, only the tools that one of them lists may be called, and those that `always`
    names. `names` says which tools of the agent are meant, such as `{"Bash": "run_command"}`, and `shells` names the
    tools that run shell commands, each with its parameter, if they are not called `bash` or `shell`.

    A broken skill is skipped: `explain` warns of it, `skipped` has the reason, and each session gets a note
    `skills.skipped`. With `strict`, it raises `ConfigError`.
    """

    @check_types
    def __init__(
        self,
        *folders: str | os.PathLike[str],
        names: Mapping[str, str] | None = None,
        always: Sequence[str] = (),
        shells: Mapping[str, str] | None = None,
        strict: bool = False,
        name: str = "skills",
    ) -> None:
        require_name("Skills", name)
        require("Skills", "folders", folders, bool(folders), "one folder or more")
        self.name = name
        self.names, self.always, self.shells = dict(names or {}), tuple(always), shells
        self.skills, self.skipped = find_skills(folders)
        if strict and self.skipped:
            raise ConfigError("; ".join([f"skill {place!r}: {why}" for place, why in self.skipped.items()]))
        self._active: Slot[ActiveSkills] = Slot(
            f"{name}.active", ActiveSkills, merge=ActiveSkills.merge, input=False, output=False
        )

    def install(self, registrar: Hooks) -> None:
        """Register the list of skills, the tools, and the gate for what skills allow."""
        if self.skipped:
            registrar.inject(SessionStarting, name=f"{self.name}.skipped")(self._note_skipped)
        if not self._offered:
            return
        registrar.instruct(self._section())
        registrar.slot(self._active)
        registrar.tool(self.use_skill)
        registrar.tool(self.read_skill_file)
        if any(skill.allowed_tools is not None for skill in self._offered.values()):
            self._install_gate(registrar)

    def _install_gate(self, registrar: Hooks) -> None:
        known: list[Assembly] = []
        registrar.check(known.append)
        allowed: dict[tuple[str, ...], Permissions] = {}
        is_free = [name_test(pattern) for pattern in ("use_skill", "read_skill_file", *self.always)]

        async def allow_tools(event: ToolCalling, turn: Turn[Any]) -> Deny | None:
            active = turn.get(self._active)
            if active.turn != turn_number(turn) or any(test(event.call.name) for test in is_free):
                return None
            if lost := [name for name in active.names if name not in self.skills]:
                return Deny(f"skill {' and '.join(lost)} is in use, but its folder is gone")
            bound = tuple([name for name in active.names if self.skills[name].allowed_tools is not None])
            if not bound:
                return None
            if bound not in allowed:
                skills = [self.skills[name] for name in bound]
                allowed[bound] = permissions_of(skills, known[-1].tools, self.names, self.shells)
            if (await allowed[bound].judge(event.call)).decision == "allow":
                return None
            rules = ", ".join([rule.text for rule in allowed[bound].rules])
            return Deny(
                f"skill {' and '.join(bound)} allows {f'only {rules}' if rules else 'no tool'} until this turn ends"
            )

        registrar.gate(ToolCalling, name=f"{self.name}.allowed_tools")(allow_tools)

    @property
    def _offered(self) -> dict[str, Skill]:
        return {name: skill for name, skill in self.skills.items() if skill.offered}

    def _section(self) -> str:
        lines = [f"- {skill.name}: {skill.description}" for skill in self._offered.values()]
        return "\n".join([HEADING, *lines])

    async def _note_skipped(self, event: SessionStarting, turn: Turn[Any]) -> None:
        found = {os.path.basename(place): why[:200] for place, why in list(self.skipped.items())[:20]}
        turn.note("skills.skipped", {"count": len(self.skipped), "skills": found})

    # ------------------------------------------------------------ the tools

    @tool(effect="pure")
    def use_skill(self, name: str, turn: Turn[Any]) -> str:
        """Begin to use a skill: returns its instructions and the names of its files.

        Args:
            name: the name of the skill
        """
        skill = self._find(name)
        try:
            instructions, files = skill.instructions(), skill.files()
        except (OSError, ValueError) as error:
            raise ToolError(f"skill {name!r} cannot be read: {error}") from None
        turn.set(self._active, turn.get(self._active).merge(ActiveSkills(turn_number(turn), (name,))))
        listed = [f"Its files, for read_skill_file: {', '.join(files)}"] if files else []
        return "\n".join([f"Skill {name}, in the folder {skill.folder}", *listed, "", instructions])

    @tool(effect="pure")
    def read_skill_file(self, skill: str, path: str, offset: int = 0, length: int = 20_000) -> str:
        """Read a text file of a skill.

        Args:
            skill: the name of the skill
            path: the path of the file, as use_skill lists it
            offset: from which character on
            length: how many characters
        """
        try:
            text = self._find(skill).read(path)
        except (OSError, ValueError) as error:
            raise ToolError(str(error)) from None
        return text if offset == 0 and len(text) <= length else excerpt(text, offset, length, what="the file")

    def _find(self, name: str) -> Skill:
        if (skill := self._offered.get(name)) is None:
            raise ToolError(f"there is no skill {name!r}; the skills are {', '.join(list(self._offered)[:50])}")
        return skill

    # ------------------------------------------------------------ for explain

    def summary(self) -> str:
        """The skills, for `explain`."""
        names = list(self._offered)
        more = [f"and {len(names) - 10} more"] if len(names) > 10 else []
        skipped = f"; {len(self.skipped)} skipped" if self.skipped else ""
        return f"{len(names)} skills: {', '.join([*names[:10], *more])}{skipped}"

    def warnings(self, tools: Mapping[str, Tool[..., Any]]) -> list[str]:
        """What is wrong with skills, for `explain`."""
        found = [f"the skill in {place} is skipped: {why}" for place, why in self.skipped.items()]
        unknown = {skill.name: unknown_tools(skill, tools, self.names) for skill in self._offered.values()}
        found += [f"skill {name!r} allows {', '.join(rules)}: no such tool" for name, rules in unknown.items() if rules]
        if (size := len(self._section())) > MUCH:
            found.append(f"the list of {len(self._offered)} skills has {size:,} characters in every request")
        return found
