"""AgentHooks: the interceptors of Agent Hooks as gates and rewrites of an agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from agent_hooks import HostSurface, InterceptionEmitter, Interceptor

from windlass.capabilities.validate import is_input, opens_turn
from windlass.decisions import Deny, Halt
from windlass.errors import ConfigError, HookError
from windlass.events import (
    Erring,
    MessageAdding,
    ModelCalling,
    ModelReplying,
    Resuming,
    SessionStarting,
    ToolCalling,
    ToolReturning,
    TurnEnding,
    TurnStarting,
)
from windlass.messages import Message, ModelCall, ModelReply, ModelRequest, ToolCall, ToolResult, assistant
from windlass.outcomes import Cancelled, Completed
from windlass.records import Outcome, SessionEnded
from windlass.turns import Turn
from windlass.types import CallModel

from .contexts import (
    Unreadable,
    arguments_json,
    call_id,
    content_json,
    messages_json,
    reply_json,
    result_json,
    with_content,
    with_messages,
    with_response,
    with_result,
)
from .emissions import HookedSession, HookedSessions, Judged
from .streaming import MediatedText

if TYPE_CHECKING:
    from windlass import Hooks

_LAST = -(2**31)
"""The priority of the rewrites: interceptors see what all others have left."""

EXPOSURE_BOUND = "one streamed piece: each is released after a verdict on the text up to its end"

_current: ContextVar[Mapping[_Points, tuple[HookedSession, Turn[Any]]]] = ContextVar(
    "agent_hooks_sessions", default=MappingProxyType({})
)
"""The session and turn in which a model is being called, for the transformers of its text: one for each host, since an
agent may have hooks of its own below those of its parent."""


class AgentHooks:
    """Let the interceptors of Agent Hooks 0.1 judge and change what an agent does, at all eight interception points.

    `emitter` is an `InterceptionEmitter` of the SDK, with its interceptors, composition profile, approval resolver,
    identity provider and mode; or a list of interceptors, which get the defaults of the SDK. It may be built from a
    host declaration: see `host_surface`. Give the capability the guard band, so that interceptors see exactly what
    leaves the agent, and also hold for sub-agents: `agent.with_capability(AgentHooks(emitter), band="guard")`.

    A refused tool call or result is told to the model, which goes on; any other refusal ends the turn. With
    `tool_errors="terminate"` a failure of an interceptor at a tool call ends it, too; by default the declaration says
    that, or else the turn continues. Text is held back until the whole reply is judged. With `incremental=True` it
    streams: each piece is released after a verdict on all text up to its end, from interceptors that do not wait.

    Records that say more than a plain `allow` are notes in the log (`Noted`, kind `agent_hooks`); the emitter's record
    sink gets all.
    """

    def __init__(
        self,
        emitter: InterceptionEmitter | Sequence[Interceptor],
        *,
        incremental: bool = False,
        tool_errors: Literal["continue", "terminate"] | None = None,
        name: str = "agent_hooks",
    ) -> None:
        if tool_errors not in (None, "continue", "terminate"):
            raise ConfigError(
                f"AgentHooks(tool_errors={tool_errors!r}): tool_errors must be 'continue', 'terminate' or None"
            )
        self.name = name
        self.emitter = emitter if isinstance(emitter, InterceptionEmitter) else _emitter_of(emitter)
        self.incremental = incremental
        self.ends_on_tool_errors = (tool_errors or _declared_posture(self.emitter)) == "terminate"

    def install(self, registrar: Hooks) -> None:
        """Register a rewrite and a gate for each point."""
        sessions = HookedSessions(self.emitter)
        points = _Points(sessions, self.ends_on_tool_errors, self.incremental)
        self._judge(registrar, "input", TurnStarting, points.input, points.halted)
        self._judge(registrar, "steered", MessageAdding, points.steered, points.left_out, when=_is_steered)
        self._judge(registrar, "pre_model_call", ModelCalling, points.request, points.halted)
        self._judge(registrar, "post_model_call", ModelReplying, points.reply, points.halted, live=self.incremental)
        self._judge(registrar, "pre_tool_call", ToolCalling, points.call, points.call_refused)
        self._judge(registrar, "post_tool_call", ToolReturning, points.result, points.result_refused)
        self._judge(registrar, "output", TurnEnding, points.output, points.withheld, live=self.incremental)
        registrar.gate(SessionStarting, name=f"{self.name}.agent_startup")(points.startup)
        registrar.gate(Resuming, name=f"{self.name}.agent_startup")(points.startup_on_resume)
        registrar.observe(SessionEnded, name=f"{self.name}.agent_shutdown", wait=True, inherit=True)(points.shutdown)
        registrar.wrap(ModelCall, name=f"{self.name}.side_calls", side_calls=True, when=_is_side)(points.side_call)
        if self.incremental:
            registrar.gate(Erring, name=f"{self.name}.residue")(points.residue)
            registrar.transform(name=self.name, priority=_LAST)(points.mediated)

    def summary(self) -> str:
        """The mode and the composition, for `explain`."""
        return f"{self.emitter.mode.value}, {self.emitter.composition.profile.value}"

    def _judge(
        self, registrar: Hooks, point: str, event: Any, judge: Any, decide: Any, when: Any = None, live: bool = False
    ) -> None:
        """Ask the interceptors in the last rewrite, and let a gate hold their verdict against the final payload."""
        options: dict[str, Any] = {"name": f"{self.name}.{point}", **({"when": when} if when else {})}
        if live:
            options["live"] = True

        async def change(event: Any, turn: Turn[Any]) -> Any:
            judged: Judged = await judge(event, turn)
            return judged.payload if judged.changed else None

        async def hold(event: Any, turn: Turn[Any]) -> Any:
            judged = await judge(event, turn, final=True)
            return None if judged.refusal is None else decide(judged.refusal, event, turn)

        registrar.rewrite(event, priority=_LAST, **options)(change)
        registrar.gate(event, **options)(hold)


def host_surface(
    *, incremental: bool = False, tool_errors: Literal["continue", "terminate"] = "continue"
) -> HostSurface:
    """What this host can do, for the `HostRegistry` that a host declaration is loaded with.

    `incremental` and `tool_errors` are those of the `AgentHooks` that the declaration is for.
    """
    capabilities = ["model_calls", "tool_calls", "parallel_tool_calls", "streaming", "multi_turn"]
    capabilities += ["int64_json", "bigint_json", "host_declaration"]
    if not incremental:
        return HostSurface.from_capabilities(capabilities, tool_errors)
    surface = HostSurface.from_capabilities([*capabilities, "incremental_output"], tool_errors)
    return surface.with_exposure_bound(EXPOSURE_BOUND)


class _Points:
    """The interception points. Each shows a payload to the interceptors once, and keeps what they said of it."""

    def __init__(self, sessions: HookedSessions, ends_on_tool_errors: bool, incremental: bool) -> None:
        self._sessions = sessions
        self._ends_on_tool_errors = ends_on_tool_errors
        self._incremental = incremental

    # ------------------------------------------------------------ the session

    async def startup(self, event: SessionStarting, turn: Turn[Any]) -> Halt | None:
        return await self._open(turn, [spec.name for spec in event.setup.tools])

    async def startup_on_resume(self, event: Resuming, turn: Turn[Any]) -> Halt | None:
        return await self._open(turn, list(turn.tools))

    async def _open(self, turn: Turn[Any], tools: list[str]) -> Halt | None:
        session = self._sessions.of(turn)
        if session.is_open:
            return None
        refusal = await session.emit(session.builder(turn).agent_startup(tools_registered=tools), turn)
        session.is_open, session.is_blocked = refusal is None, refusal is not None
        return None if refusal is None else Halt(refusal)

    async def shutdown(self, fact: SessionEnded, turn: Turn[Any]) -> None:
        session = self._sessions.close(turn)
        if session is not None:
            await session.emit(session.builder(turn).agent_shutdown(reason=session.reason), None)

    # ------------------------------------------------------------ payloads

    async def input(self, event: TurnStarting, turn: Turn[Any], final: bool = False) -> Judged:
        halted = await self._open(turn, list(turn.tools))
        if halted is not None:
            return Judged(event.message, halted.reason)
        session = self._sessions.of(turn)
        if not final:
            session.is_blocked = False
            session.judged.clear()
        return await self._message(session, "input", event.message, turn, final)

    async def steered(self, event: MessageAdding, turn: Turn[Any], final: bool = False) -> Judged:
        return await self._message(self._sessions.of(turn), "steered", event.message, turn, final)

    async def _message(
        self, session: HookedSession, point: str, message: Message, turn: Turn[Any], final: bool
    ) -> Judged:
        def context() -> dict[str, Any]:
            return session.builder(turn).input(content=content_json(message.parts), role="user")

        def changed(context: dict[str, Any]) -> Message:
            if context["input"]["role"] != "user":
                raise Unreadable("the role of the input cannot be changed")
            return message.replace(parts=with_content(message.parts, context["input"]["content"]))

        return await self._judged(session, (point, ""), message, context, changed, turn, final)

    async def request(self, event: ModelCalling, turn: Turn[Any], final: bool = False) -> Judged:
        session, request = self._sessions.of(turn), event.request
        _current.set({**_current.get(), self: (session, turn)})
        session.stream = None
        before = messages_json(request)

        def context() -> dict[str, Any]:
            tools = [{"name": t.name, "description": t.description, "schema": dict(t.schema)} for t in request.tools]
            return session.builder(turn).pre_model_call(
                model_id=request.model or "model", messages=messages_json(request), tools=tools
            )

        def changed(context: dict[str, Any]) -> ModelRequest:
            return with_messages(request, before, context["messages"])

        return await self._judged(session, ("request", request.side), request, context, changed, turn, final)

    async def reply(self, event: ModelReplying, turn: Turn[Any], final: bool = False) -> Judged:
        session, reply = self._sessions.of(turn), event.reply
        if self._incremental and (stream := session.stream) is not None:
            if stream.refusal is not None:
                return Judged(reply, stream.refusal if final else stream.tell(turn))
            if stream.judged == reply.text and not reply.tool_calls:
                return Judged(reply)
        return await self._reply(session, reply, turn, final, event.turn.model)

    async def _reply(
        self, session: HookedSession, reply: ModelReply, turn: Turn[Any], final: bool, model: str
    ) -> Judged:
        before = reply_json(reply)

        def context() -> dict[str, Any]:
            usage = {"prompt_tokens": reply.usage.input, "completion_tokens": reply.usage.output}
            return session.builder(turn).post_model_call(
                model_id=reply.model or model or "model", usage=usage, **before
            )

        def changed(context: dict[str, Any]) -> ModelReply:
            return with_response(reply, before, context["response"])

        judged = await self._judged(session, ("reply", ""), reply, context, changed, turn, final)
        if judged.refusal is None or final:
            return judged
        withheld = _withheld(reply)  # so that no log has what was refused
        session.judged["reply", ""] = Judged(withheld, judged.refusal)
        return Judged(withheld, judged.refusal, changed=True)

    async def call(self, event: ToolCalling, turn: Turn[Any], final: bool = False) -> Judged:
        session, call = self._sessions.of(turn), event.call

        def context() -> dict[str, Any]:
            return session.builder(turn).pre_tool_call(
                call_id=call_id(call), name=call.name, args=arguments_json(call.json)
            )

        def changed(context: dict[str, Any]) -> ToolCall:
            arguments = context["tool_call"]["args"]
            if not isinstance(arguments, dict):
                raise Unreadable("the arguments of a call must be an object")
            return call.replace(arguments=arguments)

        return await self._judged(session, ("call", call.id), call, context, changed, turn, final)

    async def result(self, event: ToolReturning, turn: Turn[Any], final: bool = False) -> Judged:
        session, call, result = self._sessions.of(turn), event.call, event.result
        before = session.judged.get(("call", call.id))
        if result.status == "denied" and before is not None and before.refusal is not None:
            return Judged(result)  # the model reads what the interceptors said themselves

        def context() -> dict[str, Any]:
            return session.builder(turn).post_tool_call(
                call_id=call_id(call),
                name=call.name,
                args=arguments_json(call.json),
                value=result_json(result),
                is_error=result.is_error,
            )

        def changed(context: dict[str, Any]) -> ToolResult:
            return with_result(result, context["tool_result"]["value"])

        return await self._judged(session, ("result", call.id), result, context, changed, turn, final)

    async def output(self, event: TurnEnding, turn: Turn[Any], final: bool = False) -> Judged:
        session, text, outcome = self._sessions.of(turn), event.text, event.outcome
        session.stream = None
        session.reason = "error" if session.is_blocked else _reason(outcome)
        if session.is_blocked or not (text or type(outcome) is Completed):
            return Judged(text)

        def context() -> dict[str, Any]:
            return session.builder(turn).output(content=text)

        def changed(context: dict[str, Any]) -> str:
            content = context["output"]["content"]
            if not isinstance(content, str):
                raise Unreadable("the content of the output must be a text")
            return content

        judged = await self._judged(session, ("output", ""), text, context, changed, turn, final)
        if final:
            session.judged.clear()  # it holds the transcript
        return judged

    async def side_call(self, request: ModelRequest, call_next: CallModel, turn: Turn[Any]) -> ModelReply:
        """The reply to a hook or tool that asks a model."""
        reply = await call_next(request)
        session = self._sessions.of(turn)
        judged = await self._reply(session, reply, turn, final=True, model=request.model)
        if judged.refusal is not None:
            raise HookError(f"agent_hooks refused the reply: {judged.refusal}", hook="agent_hooks")
        return reply

    def mediated(self) -> MediatedText:
        """The transformer of the text of one attempt."""
        known = _current.get().get(self)
        if known is None:
            raise RuntimeError("a reply streams outside of a model call that interceptors know")
        session, turn = known
        session.stream = MediatedText(session, turn)
        return session.stream

    # ------------------------------------------------------------ refusals

    def halted(self, refusal: str, event: Any, turn: Turn[Any]) -> Halt:
        session = self._sessions.of(turn)
        session.is_blocked, session.reason = True, "error"
        return Halt(refusal)

    def left_out(self, refusal: str, event: MessageAdding, turn: Turn[Any]) -> Deny:
        return Deny(refusal)

    def call_refused(self, refusal: str, event: ToolCalling, turn: Turn[Any]) -> Deny | Halt:
        if self._ends_on_tool_errors and refusal.startswith("host_error:"):
            return self.halted(refusal, event, turn)
        return Deny(refusal)

    def result_refused(self, refusal: str, event: ToolReturning, turn: Turn[Any]) -> Deny | Halt:
        if self._ends_on_tool_errors and refusal.startswith("host_error:"):
            return self.halted(refusal, event, turn)
        return Deny(refusal)

    def withheld(self, refusal: str, event: TurnEnding, turn: Turn[Any]) -> Deny:
        self._sessions.of(turn).reason = "error"
        return Deny(refusal)

    async def residue(self, event: Erring, turn: Turn[Any]) -> Halt | None:
        """End the turn if a stream broke off and text of it was neither judged nor released."""
        session = self._sessions.of(turn)
        stream = session.stream
        refusal = None if stream is None else stream.break_off(turn)
        return None if refusal is None else self.halted(refusal, event, turn)

    # ------------------------------------------------------------ one verdict for each payload

    async def _judged(
        self,
        session: HookedSession,
        key: tuple[str, str],
        payload: Any,
        context: Callable[[], dict[str, Any]],
        changed: Callable[[dict[str, Any]], Any],
        turn: Turn[Any],
        final: bool,
    ) -> Judged:
        """What the interceptors say of a payload. At the gate (`final`) they are asked only about another payload than
        before, which they cannot change any more: there a change is a refusal."""
        known = session.judged.get(key)
        if final and known is not None and known.payload == payload:
            return known
        shown = context()
        refusal = await session.emit(shown, turn)
        new = payload
        if refusal is None:
            try:
                new = changed(shown)
            except Unreadable as error:
                refusal = f"an interceptor made an unusable change: {error}"
            else:
                if final and new != payload:
                    refusal = "an interceptor changes what can no longer be changed here"
        judged = session.judged[key] = Judged(new, refusal, new != payload)
        return judged


def _reason(outcome: Outcome) -> str:
    return "completed" if type(outcome) is Completed else "cancelled" if type(outcome) is Cancelled else "error"


def _is_steered(event: MessageAdding) -> bool:
    return is_input(event) and not opens_turn(event)


def _is_side(request: ModelRequest) -> bool:
    return bool(request.side)


def _withheld(reply: ModelReply) -> ModelReply:
    return reply.replace(message=assistant(f"[withheld: {len(reply.text)} characters]"), finish="content_filter")


def _emitter_of(interceptors: Sequence[Interceptor]) -> InterceptionEmitter:
    given: Any = interceptors
    if not isinstance(given, list | tuple) or not all(callable(getattr(one, "intercept", None)) for one in given):
        raise ConfigError(
            "AgentHooks(…) takes an InterceptionEmitter of agent-hooks-sdk or a list of interceptors, which are "
            f"objects with intercept(context), not {given!r:.80}"
        )
    emitter = InterceptionEmitter().set_max_records(1000)
    for one in given:
        emitter.register(one)
    return emitter


def _declared_posture(emitter: InterceptionEmitter) -> str:
    declaration = emitter.declaration
    return "continue" if declaration is None else str(declaration.configuration["posture"]["tool_seam_host_error"])


__all__ = ["AgentHooks", "host_surface"]
