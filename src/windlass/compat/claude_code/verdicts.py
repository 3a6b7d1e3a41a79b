"""The answers of all hooks of one event, merged by the rules of Claude Code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from .answers import PERMISSIONS, Permission
from .handlers import HookRun


class Verdict(Struct, frozen=True):
    """What the hooks of one event decided together.

    - `blocks`: the reasons of all that block; empty if none does
    - `permission` and `reason`: the strictest permission, and the reasons given for it
    - `context`: texts for the model, in the order of the settings
    - `stops`: whether the agent must stop, with the `stop_reason` for the user
    - `input`: what replaces the input of the call, given by the last hook in the order of the settings
    - `output`: what replaces its output, if `replaces_output`
    - `requests`: answers to a PermissionRequest
    """

    runs: tuple[HookRun, ...] = ()
    blocks: tuple[str, ...] = ()
    permission: Permission | None = None
    reason: str = ""
    context: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()
    stops: bool = False
    stop_reason: str = ""
    input: dict[str, Any] | None = None
    output: Any = None
    replaces_output: bool = False
    requests: tuple[dict[str, Any], ...] = ()

    @property
    def feedback(self) -> str:
        """The reasons of all that block, as one text."""
        return "\n".join(self.blocks)


def merge(runs: Sequence[HookRun]) -> Verdict:
    """Merge the answers of all hooks of one event: deny before defer before ask before allow; any block blocks."""
    answers = [run.answer for run in runs]
    given = {answer.permission for answer in answers}
    permission: Permission | None = next((one for one in PERMISSIONS if one in given), None)
    reasons = [one.reason for one in answers if permission and one.permission == permission and one.reason]
    stopping = [one for one in answers if one.stops]
    outputs = [one.output for one in answers if one.replaces_output]
    return Verdict(
        tuple(runs),
        _unique([one.reason for one in answers if one.blocked]),
        permission,
        "\n".join(_unique(reasons)),
        _unique([text for one in answers for text in one.context]),
        _unique([one.message for one in answers if one.message]),
        bool(stopping),
        "\n".join(_unique([one.stop_reason for one in stopping if one.stop_reason])),
        next((one.input for one in reversed(answers) if one.input is not None), None),
        outputs[-1] if outputs else None,
        bool(outputs),
        tuple([one.request for one in answers if one.request is not None]),
    )


def _unique(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))
