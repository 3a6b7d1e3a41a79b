"""Where the events of Claude Code happen in our lifecycle, and what the answers of its hooks become there."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from windlass.decisions import Allow, Approve, Ask, Deny, Edit, Halt, Reject, Says, Veto
from windlass.errors import ToolError
from windlass.events import (
    Compacting,
    Resuming,
    SessionStarting,
    StepStarting,
    Stopping,
    SubagentStopping,
    ToolCalling,
    ToolReturning,
    TurnFailed,
    TurnStarting,
)
from windlass.messages import Message, TextPart, ToolResult
from windlass.protocols import Model
from windlass.records import Asked, Compacted, Injected, SessionEnded
from windlass.turns import Turn

from .aliases import Aliases, CallView, ToolAlias, parameters_of
from .contexts import fitted, is_of, limited, without
from .engine import Engine, Firing, note_of
from .environment import ENV_FILE_EVENTS
from .handlers import HookRun, Payload
from .matchers import Subject
from .naming import call_id
from .plain_text import plain_text
from .protocol import EVENTS
from .responses import failure_of, output_text, response_of
from .sessions import SessionState, SessionStates
from .sources import Found
from .transcripts import Transcript
from .verdicts import Verdict
from .workers import Workers

if TYPE_CHECKING:
    from windlass import Assembly, Hooks, Tool

log = logging.getLogger("windlass.compat")

_WITHOUT_MODE = frozenset(
    {"SessionStart", "SessionEnd", "Notification", "SubagentStart", "PreCompact", "PostCompact", "StopFailure"}
)
"""The events whose input has no `permission_mode`."""
_AFTERWARDS = ("SessionEnd", "Notification", "PermissionRequest", "StopFailure", "PostCompact")
"""The events at which the conversation cannot be read any more: its transcript is kept up to date for their hooks."""
STOP_CAP = 8
AT_ONCE = 8
"""So many sessions end at the same time when the process leaves them."""
ASKED_FOR = "asked for"
"""The reason of a compaction that the application made with `agent.compact`."""


class Options(Struct, frozen=True):
    """The options of the capability, checked."""

    project: str
    root: str
    closed: bool
    permission_mode: str
    prompt_model: Model | str | None
    workers: Workers | None
    tools: Mapping[str, ToolAlias | str]
    on_message: Callable[[str], object] | None


class Bridge:
    """The hooks of a project in one agent."""

    def __init__(self, found: Found, options: Options, registrar: Hooks, name: str) -> None:
        self._options = options
        self._registrar = registrar
        self._name = name
        self._aliases = Aliases(options.root, options.tools)
        self._sessions = SessionStates(options.project, registrar.mask, self._aliases, name)
        self._assembled: list[Assembly] = []
        model = None if options.prompt_model is None else registrar.model(options.prompt_model)
        self.engine = Engine(
            found, closed=options.closed, workers=options.workers, model=model, finished=self._finished
        )
        self._keeps_transcript = self.engine.has(*_AFTERWARDS)

    def install(self) -> None:
        """Register hooks for the events that have any."""
        registrar, has, name = self._registrar, self.engine.has, self._name
        registrar.check(self._assembled.append)
        registrar.at_close(self.close)
        registrar.observe(SessionEnded, name=f"{name}.SessionEnd", wait=True)(self.session_ended)
        if has("SessionStart"):
            registrar.hook(SessionStarting, name=f"{name}.SessionStart")(self.session_starting)
            registrar.hook(Resuming, name=f"{name}.resumed")(self.resuming)
        if has("SessionStart", "CwdChanged"):
            registrar.reveal(self.reveal_env, tool=_is_shell, name=f"{name}.env", inherit=True)
        registrar.hook(TurnStarting, name=f"{name}.UserPromptSubmit", inherit=True)(self.turn_starting)
        registrar.hook(StepStarting, name=f"{name}.PostToolBatch", inherit=True)(self.step_starting)
        if has("PreToolUse") or self._keeps_transcript:
            registrar.hook(ToolCalling, name=f"{name}.PreToolUse", inherit=True)(self.tool_calling)
        if has("PreToolUse", "PermissionRequest"):
            registrar.approver(self.answer)
        if has("PostToolUse", "PostToolUseFailure"):
            registrar.hook(ToolReturning, name=f"{name}.PostToolUse", inherit=True)(self.tool_returning)
        elif self._follows():
            registrar.hook(ToolReturning, name=f"{name}.cwd", inherit=True, tool=_is_shell)(self.shell_returning)
        if has("Stop") or self._may_wake() or self._keeps_transcript:
            registrar.gate(Stopping, name=f"{name}.Stop")(self.stopping)
        if has("SubagentStop"):
            registrar.gate(SubagentStopping, name=f"{name}.SubagentStop", inherit=True)(self.subagent_stopping)
        if has("PreCompact"):
            registrar.gate(Compacting, name=f"{name}.PreCompact", inherit=True)(self.compacting)
        if has("PostCompact", "SessionStart"):
            registrar.observe(Compacted, name=f"{name}.PostCompact", wait=True)(self.compacted)
        if has("Notification"):
            registrar.observe(Asked, name=f"{name}.Notification")(self.asked)
        if has("StopFailure"):
            registrar.observe(TurnFailed, name=f"{name}.StopFailure", wait=True)(self.turn_failed)

    def _follows(self) -> bool:
        """Whether there are hooks that run during a turn, whose folder follows the shell."""
        return self.engine.has(*[event for event in EVENTS if EVENTS[event].here])

    def _may_wake(self) -> bool:
        return self.engine.wakes

    # ------------------------------------------------------------ firing

    async def _fire(
        self,
        event: str,
        value: str,
        fields: Mapping[str, Any],
        turn: Turn[Any],
        *,
        subject: Subject | None = None,
        seconds: float | None = None,
        live: bool = True,
    ) -> Verdict:
        """Run the hooks of an event. The transcript is brought up to date before, if the turn is `live`."""
        fires = self.engine.has(event) and (
            self.engine.has_conditions(event) or self.engine.select(event, value, subject)
        )
        if live and (fires or self._keeps_transcript):
            await self._update(turn)
        if not fires:
            return Verdict()
        state, agent = self._sessions.of(turn.session_id)
        if not live:
            _begin(state.transcript(agent))
        about = {"agent_id": agent, "agent_type": turn.agent, **fields} if agent else fields
        payload = self._payload(event, about, state, agent)
        found = await self.engine.fire(Firing(event, value, payload, subject, seconds), turn if live else None)
        verdict = limited(found)
        self._tell(verdict, turn if live else None)
        return verdict

    async def _update(self, turn: Turn[Any]) -> None:
        """Bring the transcript up to date."""
        state, agent = self._sessions.of(turn.session_id)
        transcript = state.transcript(agent)
        try:
            await transcript.update(turn)
        except OSError as error:
            log.warning("the transcript %s cannot be written: %s", transcript.path, error)

    def _payload(self, event: str, fields: Mapping[str, Any], state: SessionState, agent: str = "") -> Payload:
        """The input of an event in a session, or in a sub-agent of it."""
        project = self._options.project
        cwd = state.folders.get(agent, project)
        data: dict[str, Any] = {
            "session_id": state.name,
            "transcript_path": str(state.transcript().path),
            "cwd": cwd,
        }
        if event not in _WITHOUT_MODE:
            data["permission_mode"] = self._options.permission_mode
        data |= {"hook_event_name": event, **fields}
        env_file = state.env_file if event in ENV_FILE_EVENTS else None
        return Payload(data, state.name, project, cwd, env_file)

    def _tell(self, verdict: Verdict, turn: Turn[Any] | None) -> None:
        """Record what hooks said and what failed, and tell the user what they have for the user."""
        for run in verdict.runs:
            if turn is not None and not run.answer.is_silent and not run.answer.asynchronous:
                turn.note("claude_code.hook", note_of(run))
        for message in verdict.messages:
            self._message(message)

    def _message(self, text: str) -> None:
        if self._options.on_message is not None:
            self._options.on_message(text)
        else:
            log.info("hook message: %s", text)

    def _finished(self, run: HookRun, payload: Payload) -> None:
        """A hook in the background has ended: what it has for the model is delivered at the next step."""
        if run.answer.message:
            self._message(run.answer.message)
        state = self._sessions.named(payload.session)
        if state is None:
            return
        state.pending += (*run.answer.context, *filter(None, [run.answer.message]))
        if run.handler.rewakes and run.output is not None and run.output.exit == 2:
            text = plain_text(run.output.stderr or run.output.stdout).strip()
            heading = run.handler.rewake_message
            state.wakes.append(f"{heading}\n{text}".strip() or "a hook in the background needs attention")

    def _context(self, texts: Iterable[str], turn: Turn[Any], *, beside: bool = False) -> Injected | None:
        """Texts for the model, as a part of the conversation that stays; `beside` the result of a call on new lines."""
        given = fitted([text for text in texts if text], turn)
        parts = tuple([TextPart(f"\n{text}" if beside else text) for text in given])
        return Injected(parts, durable=True) if parts else None

    # ------------------------------------------------------------ sessions

    async def session_starting(self, event: SessionStarting, turn: Turn[Any]) -> Says | None:
        """SessionStart of a new session: its context becomes a section of the system text."""
        state, _ = self._sessions.of(turn.session_id)
        verdict = await self._start(state, "startup", turn)
        texts = fitted(verdict.context, turn)
        parts = Injected(tuple([TextPart(text) for text in texts])) if texts else None
        return _says(_halt(verdict), parts)

    async def _start(self, state: SessionState, source: str, turn: Turn[Any], *, live: bool = True) -> Verdict:
        state.started = True
        fields = {"source": source, **({"model": turn.model} if live else {})}
        verdict = await self._fire("SessionStart", source, fields, turn, live=live)
        state.load_env()
        return verdict

    async def _resumed(self, turn: Turn[Any]) -> Verdict:
        """SessionStart of a session that another process began, once for each process."""
        state, agent = self._sessions.of(turn.session_id)
        if state.started or agent or not self.engine.has("SessionStart"):
            return Verdict()
        opened = turn.state.opened
        source = "fork" if opened is not None and opened.how == "forked" else "resume"
        return await self._start(state, source, turn)

    async def resuming(self, event: Resuming, turn: Turn[Any]) -> Says | None:
        """SessionStart of a session whose turn goes on in another process."""
        verdict = await self._resumed(turn)
        return _says(_halt(verdict), self._context(verdict.context, turn))

    async def session_ended(self, fact: SessionEnded, turn: Turn[Any]) -> None:
        """SessionEnd. All hooks together have 1.5 seconds, or as long as one of them says, at most 60."""
        if "//" in turn.session_id:
            return
        if self.engine.has("SessionEnd"):
            seconds = self._seconds_to_end()
            await self._fire("SessionEnd", "other", {"reason": "other"}, turn, seconds=seconds, live=False)
        self._sessions.forget(turn.session_id)

    def _seconds_to_end(self) -> float:
        """How many seconds the hooks of SessionEnd have together."""
        given = os.environ.get("CLAUDE_CODE_SESSIONEND_HOOKS_TIMEOUT_MS", "")
        if given.isdecimal() and int(given):
            return min(int(given) / 1000, 60.0)
        return min(max([1.5, *self.engine.timeouts("SessionEnd")]), 60.0)

    async def close(self) -> None:
        """SessionEnd of all sessions that this process leaves, and the end of all hooks."""
        try:
            if self.engine.has("SessionEnd"):
                await self._leave(self._sessions.open(), self._seconds_to_end())
        finally:
            self._sessions.forget_all()
            await self.engine.close()

    async def _leave(self, states: Sequence[SessionState], seconds: float) -> None:
        slots = asyncio.Semaphore(AT_ONCE)

        async def end(state: SessionState) -> None:
            async with slots:
                _begin(state.transcript())
                payload = self._payload("SessionEnd", {"reason": "other"}, state)
                verdict = await self.engine.fire(Firing("SessionEnd", "other", payload, None, seconds), None)
                self._tell(verdict, None)

        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.gather(*[end(state) for state in states])

    def reveal_env(self, text: str, turn: Turn[Any]) -> str:
        """A command with the variables that hooks have set for it."""
        state, _ = self._sessions.of(turn.session_id)
        return state.with_env(text)

    # ------------------------------------------------------------ turns and steps

    async def turn_starting(self, event: TurnStarting, turn: Turn[Any]) -> Says | None:
        """UserPromptSubmit; in a sub-agent SubagentStart."""
        state, agent = self._sessions.of(turn.session_id)
        if agent:
            verdict = await self._fire("SubagentStart", turn.agent, {"agent_id": agent, "agent_type": turn.agent}, turn)
            return _says(_halt(verdict), self._context(verdict.context, turn))
        resumed = await self._resumed(turn)
        state.started = True
        verdict = await self._fire("UserPromptSubmit", "", {"prompt": event.message.text}, turn)
        halt = _halt(resumed) or _halt(verdict)
        if halt is None and verdict.blocks:
            halt = Halt(f"UserPromptSubmit hook: {verdict.feedback}", reply=verdict.feedback)
        texts = [*state.take_pending(), *resumed.context, *verdict.context]
        return _says(halt, self._context(texts, turn))

    async def step_starting(self, event: StepStarting, turn: Turn[Any]) -> Says | None:
        """PostToolBatch of the step before, and texts of hooks in the background."""
        state, agent = self._sessions.of(turn.session_id)
        texts: list[str] = []
        if not agent:
            texts = [*state.take_pending(), *state.take_wakes()]
            state.allowed.clear()
            state.judged.clear()
        verdict = await self._batch(event, turn, state, agent)
        halt = _halt(verdict)
        if halt is None and verdict.blocks:
            halt = Halt(f"PostToolBatch hook: {verdict.feedback}", reply=verdict.feedback)
        return _says(halt, self._context([*texts, *verdict.context], turn))

    async def _batch(self, event: StepStarting, turn: Turn[Any], state: SessionState, agent: str) -> Verdict:
        latest = turn.state.turn
        last = None if latest is None else latest.last
        if not self.engine.has("PostToolBatch") or last is None or not last.calls:
            return Verdict()
        if state.batches.get(agent) == last.number:
            return Verdict()
        state.batches[agent] = last.number
        calls = []
        for call, result in zip(last.calls, last.results, strict=False):
            view = self._aliases.view(call, turn.tools.get(call.name))
            calls.append({**_call(view, call.id), "tool_response": self._own(result).text})
        return await self._fire("PostToolBatch", "", {"tool_calls": calls}, turn)

    # ------------------------------------------------------------ calls

    def _view(self, event: ToolCalling | ToolReturning) -> tuple[CallView, Subject]:
        view = self._aliases.view(event.call, event.tool)
        return view, self._subject(view, event.turn)

    def _subject(self, view: CallView, turn: Turn[Any]) -> Subject:
        state, agent = self._sessions.of(turn.session_id)
        project = self._options.project
        return Subject(view.tool, view.input, state.folders.get(agent, project), project, view.also)

    async def tool_calling(self, event: ToolCalling, turn: Turn[Any]) -> Says | None:
        """PreToolUse, once for each call in a process: a call that a person has approved since is not fired again."""
        view, subject = self._view(event)
        state, _ = self._sessions.of(turn.session_id)
        judged = (event.call.id, event.call.digest)
        verdict = state.judged.get(judged)
        if verdict is None:
            verdict = await self._fire("PreToolUse", view.tool, _call(view, event.call.id), turn, subject=subject)
            if verdict.permission != "defer":
                state.judged[judged] = verdict
        if not verdict.runs:
            return None
        rewritten, problem = self._rewritten(event, view, verdict)
        if problem:
            return Says(decision=Deny(problem))
        decision = _halt(verdict) or _permission(verdict, view.tool)
        if isinstance(decision, Allow):
            state.allowed[event.call.id] = (rewritten or event.call).digest
        changed = rewritten if not isinstance(decision, Deny | Halt) else None
        return _says(decision, self._context(verdict.context, turn, beside=True), changed)

    def _rewritten(self, event: ToolCalling, view: CallView, verdict: Verdict) -> tuple[Any, str]:
        """The call with the `updatedInput` of hooks, complete; and what is wrong with that."""
        if verdict.input is None:
            return None, ""
        arguments, notes = view.back(verdict.input, parameters_of(event.tool))
        for note in notes:
            log.warning("PreToolUse on %s: %s", view.tool, note)
        changed = event.call.replace(arguments=arguments)
        if event.tool is None:
            return changed, ""
        try:
            return event.call.replace(json=event.tool.complete(changed.json)), ""
        except ToolError as error:
            return None, f"a hook changed the input of this call, and that does not fit the tool: {error}"

    async def tool_returning(self, event: ToolReturning, turn: Turn[Any]) -> Says | None:
        """PostToolUse, or PostToolUseFailure if the call failed."""
        if event.result.status not in ("ok", "error"):
            return None
        view, subject = self._view(event)
        if view.tool == "Bash":
            await self._follow(event.result, turn)
        call = _call(view, event.call.id)
        own = self._own(event.result)
        failure = failure_of(view.tool, own)
        if failure is None:
            name, fields = "PostToolUse", {**call, "tool_response": response_of(view, own)}
        else:
            name, fields = "PostToolUseFailure", {**call, "error": failure, "is_interrupt": False}
        if not self.engine.has(name):
            return None
        verdict = await self._fire(name, view.tool, fields, turn, subject=subject)
        changed = None
        if verdict.replaces_output:
            text = output_text(view, verdict.output)
            if text is None:
                log.warning("%s: the updatedToolOutput does not have the shape of the output of %s", name, view.tool)
            else:
                beside = [part for part in event.result.content if is_of(part, self._name)]
                changed = event.result.replace(content=(TextPart(plain_text(text)), *beside))
        texts = [*verdict.blocks, *verdict.context]
        return _says(_halt(verdict), self._context(texts, turn, beside=True), changed)

    def _own(self, result: ToolResult) -> ToolResult:
        """What the tool itself returned, without the context that hooks have put beside it."""
        return result.replace(content=without(result.content, self._name))

    async def shell_returning(self, event: ToolReturning, turn: Turn[Any]) -> None:
        """Follow the shell where no hook looks at results."""
        await self._follow(event.result, turn)

    async def _follow(self, result: ToolResult, turn: Turn[Any]) -> None:
        """Hooks run where the shell is now: CwdChanged."""
        new = result.data.get("cwd") if isinstance(result.data, Mapping) else None
        state, agent = self._sessions.of(turn.session_id)
        old = state.folders.get(agent, self._options.project)
        new = new if isinstance(new, str) else self._options.project  # the shell ended, and the next one starts there
        if new == old:
            return
        state.folders[agent] = new
        await self._fire("CwdChanged", "", {"old_cwd": old, "new_cwd": new}, turn)
        if self.engine.has("CwdChanged"):
            state.load_env()

    async def answer(self, asked: Asked, turn: Turn[Any]) -> Approve | Edit | Reject | None:
        """Answer a question about a call: a hook has allowed it already, or PermissionRequest hooks decide."""
        if asked.event != "ToolCalling" or asked.call is None or asked.approvers is not None:
            return None
        state, _ = self._sessions.of(turn.session_id)
        if state.allowed.get(asked.call.id) == asked.digest and _asks_by_default(asked):
            return Approve(by=self._name, digest=asked.digest)
        if not self.engine.has("PermissionRequest"):
            return None
        tool = self._tool(asked.call.name)
        view = self._aliases.view(asked.call, tool)
        fields = {**_call(view, ""), "permission_suggestions": []}
        subject = self._subject(view, turn)
        verdict = await self._fire("PermissionRequest", view.tool, fields, turn, subject=subject, live=False)
        return self._resolution(asked, view, verdict, tool)

    def _tool(self, name: str) -> Tool[..., Any] | None:
        """A tool of the agent, where there is no turn to ask for it."""
        return self._assembled[-1].tools.get(name) if self._assembled else None

    def _resolution(
        self, asked: Asked, view: CallView, verdict: Verdict, tool: Tool[..., Any] | None
    ) -> Approve | Edit | Reject | None:
        """The strictest answer of PermissionRequest hooks, as far as the question takes it."""
        denied = next((one for one in verdict.requests if one["behavior"] == "deny"), None)
        if denied is not None:
            text = plain_text(denied.get("message") or "a PermissionRequest hook denied this call")
            return Reject(text, by=self._name, digest=asked.digest) if "reject" in asked.allow else None
        allowed = next((one for one in reversed(verdict.requests) if one["behavior"] == "allow"), None)
        if allowed is None or asked.call is None:
            return None
        if allowed.get("updatedInput") is None:
            return Approve(by=self._name, digest=asked.digest) if "approve" in asked.allow else None
        arguments, _ = view.back(allowed["updatedInput"], parameters_of(tool))
        return Edit(arguments, by=self._name, digest=asked.digest) if "edit" in asked.allow else None

    async def asked(self, fact: Asked, turn: Turn[Any]) -> None:
        """Notification that a person is asked."""
        kind = "permission_prompt" if fact.event in ("ToolCalling", "Delegating") else "agent_needs_input"
        call = fact.call
        name = "" if call is None else self._aliases.name_of(call.name, self._tool(call.name), call.arguments)
        text = f"Claude needs your permission to use {name}" if name else fact.question
        fields = {"message": text, "title": "Permission needed", "notification_type": kind}
        await self._fire("Notification", kind, fields, turn, live=False)

    # ------------------------------------------------------------ stops

    async def stopping(self, event: Stopping, turn: Turn[Any]) -> Veto | None:
        """Stop, and hooks in the background that want the model to go on."""
        state, _ = self._sessions.of(turn.session_id)
        wakes = state.take_wakes()
        fields = {"stop_hook_active": event.stop_active, "last_assistant_message": _last_text(turn)}
        verdict = await self._fire("Stop", "", fields, turn)
        if verdict.stop_reason:
            self._message(verdict.stop_reason)
        return self._veto(verdict, wakes)

    async def subagent_stopping(self, event: SubagentStopping, turn: Turn[Any]) -> Veto | None:
        """SubagentStop."""
        state, agent = self._sessions.of(turn.session_id)
        fields = {
            "stop_hook_active": event.stop_active,
            "agent_id": agent,
            "agent_type": event.agent,
            "agent_transcript_path": str(state.transcript(agent).path),
            "last_assistant_message": _last_text(turn),
        }
        return self._veto(await self._fire("SubagentStop", event.agent, fields, turn), [])

    def _veto(self, verdict: Verdict, wakes: Sequence[str]) -> Veto | None:
        texts = [*wakes, *verdict.blocks, *verdict.context]
        if not texts or verdict.stops:
            return None
        return Veto("\n".join(texts), limit=self._stop_cap())

    def _stop_cap(self) -> int | None:
        """After how many vetoes the stop stands; None leaves it to the agent."""
        given = os.environ.get("CLAUDE_CODE_STOP_HOOK_BLOCK_CAP", "")
        cap = int(given) if given.isdecimal() else STOP_CAP
        most = self._assembled[-1].bounds.get("max_vetoes") if self._assembled else None
        if not cap:
            return None
        return min(cap, most) if isinstance(most, int) else cap

    async def turn_failed(self, fact: TurnFailed, turn: Turn[Any]) -> None:
        """StopFailure."""
        kind = getattr(fact.error, "type", type(fact.error).__name__)
        text = plain_text(str(getattr(fact.error, "message", fact.error)))
        name = _FAILURES.get(kind, "unknown")
        fields = {"error": name, "error_details": f"{kind}: {text}", "last_assistant_message": text}
        await self._fire("StopFailure", name, fields, turn, live=False)

    # ------------------------------------------------------------ compaction

    async def compacting(self, event: Compacting, turn: Turn[Any]) -> Deny | None:
        """PreCompact."""
        trigger = "manual" if event.plan.reason == ASKED_FOR else "auto"
        fields = {"trigger": trigger, "custom_instructions": event.plan.instructions or None}
        verdict = await self._fire("PreCompact", trigger, fields, turn)
        return Deny(verdict.feedback) if verdict.blocks else None

    async def compacted(self, fact: Compacted, turn: Turn[Any]) -> None:
        """PostCompact, and SessionStart after a compaction: its context is delivered at the next step."""
        trigger = "manual" if fact.reason == ASKED_FOR else "auto"
        summary = "\n".join([one.text for one in fact.messages if isinstance(one, Message)])
        await self._fire("PostCompact", trigger, {"trigger": trigger, "compact_summary": summary}, turn, live=False)
        state, agent = self._sessions.of(turn.session_id)
        if not agent and self.engine.has("SessionStart"):
            verdict = await self._start(state, "compact", turn, live=False)
            state.pending += verdict.context


def _begin(transcript: Transcript) -> None:
    """Make a transcript if there is none."""
    try:
        transcript.begin()
    except OSError as error:
        log.warning("the transcript %s cannot be written: %s", transcript.path, error)


def _call(view: CallView, call: str) -> dict[str, Any]:
    """The fields of an event about a call."""
    fields: dict[str, Any] = {"tool_name": view.tool, "tool_input": view.input}
    if call:
        fields["tool_use_id"] = call_id(call)
    if view.server:
        fields["mcp_server"] = {"name": view.server, "source": "user"}
    return fields


def _halt(verdict: Verdict) -> Halt | None:
    """What `continue: false` becomes."""
    if not verdict.stops:
        return None
    reason = verdict.stop_reason or verdict.reason or "a hook stopped the agent"
    return Halt(reason, reply=verdict.stop_reason or None)


def _permission(verdict: Verdict, tool: str) -> Deny | Ask | Allow | None:
    """What a permission becomes. A deferred call waits as one that is asked about does."""
    match verdict.permission:
        case "deny":
            return Deny(verdict.reason or verdict.feedback or f"a hook denied {tool}")
        case "defer" | "ask":
            question = verdict.reason or f"A hook asks for permission to use {tool}. Allow it?"
            return Ask(question, details={"claude_code": verdict.permission})
        case "allow":
            return Allow()
        case None:
            return None


def _says(decision: Any, inject: Injected | None, rewrite: Any = None) -> Says | None:
    if decision is None and inject is None and rewrite is None:
        return None
    return Says(rewrite=rewrite, decision=decision, inject=inject)


def _asks_by_default(asked: Asked) -> bool:
    """Whether the question is only asked because no rule is about the call: what a hook allows is not asked then."""
    found = asked.details.get("permissions")
    return len(asked.by) == 1 and isinstance(found, Mapping) and found.get("rule") is None and not found.get("why")


def _last_text(turn: Turn[Any]) -> str:
    """What the assistant said last."""
    for message in reversed(turn.context):
        if message.role == "assistant":
            return message.text
    return ""


def _is_shell(call: Any) -> bool:
    return call.name in ("shell", "bash")


_FAILURES = {
    "RateLimited": "rate_limit",
    "QuotaExceeded": "billing_error",
    "AuthFailed": "authentication_failed",
    "Overloaded": "server_error",
    "ServerError": "server_error",
    "BadRequest": "invalid_request",
    "ContextOverflow": "invalid_request",
}
