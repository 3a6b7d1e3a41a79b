"""The arguments of calls: validated, completed with defaults, as canonical JSON, before any hook
sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from msgspec import Struct

from windlass.decisions import Allow, Edit
from windlass.errors import StoreError
from windlass.masking import Mask
from windlass.messages import ModelReply, ToolCall, ToolResult, text_result
from windlass.records import MASK, Answered, ToolDecided
from windlass.states import CallFold, Fold
from windlass.tools import Tool, completed_arguments

Held: TypeAlias = dict[str, dict[str, str]]
"""The arguments with secrets that this process holds: by session, then by call."""

NOT_KEPT = "its arguments held a secret that is not kept"
"""Why a call does not run: the log has its arguments without the secret, and this process does not
hold them."""

_MOST_HELD = 256
"""Of how many sessions a process holds arguments with secrets."""


class Prepared(Struct, frozen=True, gc=False):
    """A call with its arguments read: `call` is what hooks and wraps see, `values` is what the tool
    gets.

    `tool` is None if the session has no tool of that name. `values` is None if they must be decoded
    from `call`.
    """

    call: ToolCall
    tool: Tool[..., Any] | None = None
    values: tuple[Any, ...] | None = None


class Arguments(Struct, eq=False):
    """Reads the arguments of a session's calls.

    The log has arguments without secrets, which are never executed. `_held` has the whole ones for
    as long as this process lives and the turn lasts.
    """

    _tools: Mapping[str, Tool[..., Any]]
    _turn_tools: tuple[str, ...]
    _fold: Fold
    _mask: Mask | None
    _held: Held
    _offered: Mapping[str, Tool[..., Any]] | None = None
    _digested: tuple[str, str, str] | None = None

    def _offer(self) -> Mapping[str, Tool[..., Any]]:
        """The session's tools: the agent's, without those that a hook took out when it started, and
        those of the turn."""
        tools, opened = self._tools, self._fold.opened
        if opened is None:
            return tools
        if opened.tools is not None:
            names = [*[spec.name for spec in opened.tools], *self._turn_tools]
            tools = {name: tools[name] for name in names if name in tools}
        self._offered = tools
        return tools

    def read(self, call: ToolCall) -> Prepared:
        """A call as it runs if no hook or wrap looks at it; `ArgumentsError` if its arguments do
        not fit."""
        tool = (self._offered or self._offer()).get(call.name)
        return Prepared(call) if tool is None else Prepared(call, tool, tool.prepare(call.json))

    def complete(self, call: ToolCall) -> Prepared:
        """A call with complete arguments as canonical JSON; `ArgumentsError` if they do not fit.

        A call without a tool is not checked: hooks and wraps may answer for it.
        """
        tool = (self._offered or self._offer()).get(call.name)
        if tool is None:
            return Prepared(call)
        json, values = completed_arguments(tool, call.json)
        if json == call.json:
            return Prepared(call, tool, values)
        completed = ToolCall(call.id, call.name, json, call.vendor_id)
        if self._mask is not None:
            return Prepared(_without_secret_defaults(self._mask, call, completed), tool)
        return Prepared(completed, tool, values)

    # ------------------------------------------------------------ secrets

    @property
    def hides_secrets(self) -> bool:
        """Whether the agent has secrets."""
        return self._mask is not None

    def hold_reply(self, reply: ModelReply) -> None:
        """Hold the arguments with secrets of a reply that is about to be recorded."""
        self.release()
        for call in reply.tool_calls:
            self._hold(call.id, call.json)

    def hold_edit(self, answered: Answered) -> None:
        """Hold arguments with secrets that a person wrote, when the answer is about to be recorded."""
        if self._mask is not None and isinstance(answered.answer, Edit):
            self._hold(_edit(answered.id), _json(answered.answer))

    def bind(self, call: ToolCall) -> str:
        """The digest for the verdict on a call that is about to be recorded: that of the arguments as
        the log has them. Arguments with secrets are held."""
        if self._mask is not None:
            self._hold(call.id, call.json)
        return self.digest(call)

    def digest(self, call: ToolCall) -> str:
        """The digest of a call as the log has it: that of the latest one is not computed again."""
        known = self._digested
        if known is None or known[0] != call.name or known[1] != call.json:
            logged = call
            if self._mask is not None and (json := self._mask.text(call.json)) != call.json:
                logged = ToolCall(call.id, call.name, json)
            self._digested = known = (call.name, call.json, logged.digest)
        return known[2]

    def difference(self, state: CallFold, call: ToolCall) -> str | None:
        """The arguments to be recorded with a verdict: those that the log does not have yet."""
        recorded = state.call.json
        if call.json == recorded:
            return None
        is_known = self._mask is not None and self._mask.text(call.json) == recorded
        return None if is_known else call.json

    def known(self, state: CallFold) -> ToolCall | None:
        """A call with the arguments that the model, a hook or a person gave it; None if nobody has
        them any more."""
        if not state.masked:
            return state.call
        json = self._held_json(state.proposed.id, state.call.json)
        return None if json is None else state.call.replace(json=json)

    def edited(self, state: CallFold, answered: Answered) -> ToolCall | None:
        """A call with the arguments that a person wrote; None if nobody has them any more."""
        assert isinstance(answered.answer, Edit)
        json = recorded = _json(answered.answer)
        if answered.masked and MASK in recorded:
            held = self._held_json(_edit(answered.id), recorded)
            if held is None:
                return None
            json = held
        return state.call.replace(json=json)

    def release(self) -> None:
        """Forget the arguments with secrets of this session."""
        if self._held:
            self._held.pop(self._fold.session, None)

    def _hold(self, key: str, json: str) -> None:
        if self._mask is None or self._mask.text(json) == json:
            return
        self._held.setdefault(self._fold.session, {})[key] = json
        while len(self._held) > _MOST_HELD:
            self._held.pop(next(iter(self._held)))

    def _held_json(self, key: str, recorded: str) -> str | None:
        """What is held, if it is what the log has."""
        json = self._held.get(self._fold.session, {}).get(key)
        return (
            json if json is not None and self._mask and self._mask.text(json) == recorded else None
        )


def changed_log(session: str, call: str, name: str) -> StoreError:
    """The error of a call whose arguments in the log are not those that were decided on."""
    return StoreError(
        f"session {session!r}: the arguments of call {call!r} of tool {name!r} are not the ones that were decided on, "
        "so it does not run: the log was changed. Check it with `windlass sessions verify`, restore it, or start a new "
        "turn"
    )


def not_run() -> ToolResult:
    """The result of a call whose arguments nobody has any more."""
    return text_result(f"Not run: {NOT_KEPT}.", "denied")


def _edit(ask_id: str) -> str:
    return f"{ask_id}/edit"


def _json(edit: Edit) -> str:
    return ToolCall("", "").replace(arguments=edit.arguments).json


def _without_secret_defaults(mask: Mask, given: ToolCall, completed: ToolCall) -> ToolCall:
    """A completed call without defaults that hold a secret: no hook sees them, and the tool gets
    them unmasked."""
    if not _holds_secrets(mask, completed.json):
        return completed
    before, shown = given.arguments, completed.arguments
    for name, value in completed.arguments.items():
        if _holds_secrets(mask, completed.replace(arguments={"value": value}).json):
            del shown[name]
            if name in before:
                shown[name] = before[name]
    return completed.replace(arguments=shown)


def _holds_secrets(mask: Mask, json: str) -> bool:
    decided = ToolDecided("", Allow(), json=json)
    return mask(decided) is not decided
