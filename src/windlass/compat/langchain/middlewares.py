"""Middlewares: existing middlewares of LangChain as a capability."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage, messages_from_dict
from langchain_core.tools import BaseTool
from langgraph.store.base import BaseStore
from msgspec.structs import replace

from windlass.decisions import Answer, Deny, Finish, Halt, Says, Vote
from windlass.errors import ConfigError, HookError
from windlass.events import (
    Continuing,
    ModelCalling,
    ModelReplying,
    StepEnding,
    StepStarting,
    ToolCalling,
    ToolReturning,
    TurnEnding,
)
from windlass.messages import ModelCall, ModelReply, Part, ToolCall, ToolCallPart, ToolResult
from windlass.outcomes import Completed, Stopped
from windlass.turns import Turn

from .checking import checked, has_own, overrides
from .fields import Fields
from .model_wraps import ModelWraps, OverrideModel, Tools, loop_at_work
from .models import LangChainModel
from .reviews import review
from .runs import RESTARTS, Memory, Run
from .tool_wraps import ToolWraps, middleware_tool
from .tools import refuse_interrupts, result_of
from .transcripts import reply_of_message

if TYPE_CHECKING:
    from windlass import Hooks


class Middlewares:
    """Run middlewares of LangChain: `Agent(model, capabilities=[Middlewares(SummarizationMiddleware(…))])`.

    They run in the order of `create_agent`: hooks before in order, hooks after in reverse, and the first wrap is the
    outermost. Fields of their state are slots of the same names, and their tools are tools of the agent. `store` is
    what they get as `runtime.store`; `runtime.context` is the scope of the turn. `tools` are tools of LangChain that
    use the state, the store or the runtime, and `state_schema` declares more fields of the state, both as in
    `create_agent`. With `live`, text is streamed before `after_model` and `after_agent` have seen it, and retracted if
    they change it. `options` are those of `@tool`, such as `effect="pure"`, and hold for all tools given here and those
    that middlewares bring.
    """

    def __init__(
        self, *middlewares: AgentMiddleware[Any, Any, Any], tools: Sequence[BaseTool] = (),
        state_schema: type | None = None, store: BaseStore | None = None, live: bool = False,
        name: str = "middlewares", **options: Any,
    ) -> None:  # fmt: skip
        if store is not None and not isinstance(store, BaseStore):
            raise ConfigError(f"Middlewares(store=…) takes a store of LangGraph, not a {type(store).__name__}")
        self.name = name
        self.middlewares = checked(middlewares, alone=not tools)
        self.tools = tuple(_tools_of("Middlewares(tools=…)", tools))
        self.store = store
        self.live = live
        self.options = options
        schemas = [(one.name, one.state_schema) for one in self.middlewares]
        self._schemas = [*schemas, *([(name, state_schema)] if state_schema is not None else [])]
        Fields(self._schemas)  # an unknown kind of field is refused here

    def install(self, registrar: Hooks) -> None:
        """Register the hooks, wraps, slots and tools of the middlewares."""
        fields = Fields(self._schemas)
        memory = Memory(self.name, fields, self.store)
        for slot in memory.slots:
            registrar.slot(slot)
        brought = {
            tool.name: tool for one in self.middlewares for tool in _tools_of(one.name, getattr(one, "tools", ()))
        }
        brought |= {tool.name: tool for tool in self.tools}
        tools = Tools(brought)
        for tool in brought.values():
            registrar.tool(middleware_tool(tool, memory, tools, self.options))
        direct = frozenset(tool.name for tool in brought.values() if tool.return_direct)
        if direct:
            gate = registrar.gate(ToolReturning, tool=sorted(direct), name=f"{self.name}.return_direct")
            gate(_return_direct(direct))
        _Nodes(self.name, self.middlewares, memory).install(registrar, live=self.live)
        self._install_wraps(registrar, memory, tools)
        for one in self.middlewares:
            if isinstance(one, HumanInTheLoopMiddleware):
                registrar.gate(ToolCalling, name=f"{one.name}.interrupt_on")(review(one, memory, tools))

    def _install_wraps(self, registrar: Hooks, memory: Memory, tools: Tools) -> None:
        models = [one for one in self.middlewares if overrides(one, "wrap_model_call")]
        chats: dict[int, str] = {}
        if models:
            for name, chat in _chats_of(models):
                chats[id(chat)] = registrar.model(LangChainModel(chat, name=name))
            registrar.model(OverrideModel())
        wraps = ModelWraps(memory, tools, chats)

        @registrar.check
        def know_models(assembly: Any) -> None:
            wraps.models = assembly.models

        if any(not has_own(one, "awrap_model_call") for one in models):
            registrar.wrap(ModelCall, name=f"{self.name}.loop")(_note_loop)
        for one in models:
            is_async = has_own(one, "awrap_model_call")
            registrar.wrap(ModelCall, name=f"{one.name}.wrap_model_call")(wraps.wrap_of(one, is_async=is_async))
        calls = [
            one
            for one in self.middlewares
            if overrides(one, "wrap_tool_call") and not isinstance(one, HumanInTheLoopMiddleware)
        ]
        around = ToolWraps(memory, tools)
        if any(not has_own(one, "awrap_tool_call") for one in calls):
            registrar.wrap(ToolCall, name=f"{self.name}.loop")(_note_loop)
        for one in calls:
            is_async = has_own(one, "awrap_tool_call")
            registrar.wrap(ToolCall, name=f"{one.name}.wrap_tool_call")(around.wrap_of(one, is_async=is_async))

    def summary(self) -> str:
        """The middlewares in their order, for `explain`."""
        return ", ".join([one.name for one in self.middlewares] or [tool.name for tool in self.tools])


def _return_direct(names: frozenset[str]) -> Callable[..., Any]:
    """The gate that completes a turn with what its tools returned, if all that the reply called return directly."""

    def finish(event: ToolReturning, turn: Turn[Any]) -> Finish | None:
        step = turn.state.open
        calls = step.reply.tool_calls if step is not None and step.reply is not None else ()
        is_last = event.call.id.endswith(f"/{len(calls)}")
        return Finish(event.result.text) if is_last and all(call.name in names for call in calls) else None

    return finish


async def _note_loop(value: Any, call_next: Any) -> Any:
    """Plain middlewares run in threads, and need the loop to ask the model of the agent."""
    loop_at_work.set(asyncio.get_running_loop())
    return await call_next(value)


def _tools_of(owner: str, tools: Any) -> Iterable[BaseTool]:
    for tool in tools or ():
        if not isinstance(tool, BaseTool):
            raise ConfigError(f"{owner} brings the tool {tool!r:.80}, which is not a tool of LangChain")
        refuse_interrupts(tool)
        yield tool


def _chats_of(middlewares: Iterable[Any]) -> Iterable[tuple[str, BaseChatModel]]:
    """The chat models that middlewares hold, which they may put into requests, with a name for each."""
    used: set[str] = set()
    seen: set[int] = set()
    for one in middlewares:
        for value in vars(one).values():
            for chat in value if isinstance(value, list | tuple) else [value]:
                if isinstance(chat, BaseChatModel) and id(chat) not in seen:
                    seen.add(id(chat))
                    known = getattr(chat, "model_name", None) or getattr(chat, "model", None)
                    name = base = f"{one.name}:{known if isinstance(known, str) and known else type(chat).__name__}"
                    number = 1
                    while name in used:
                        number += 1
                        name = f"{base}#{number}"
                    used.add(name)
                    yield name, chat


class _Nodes:
    """The hooks before and after, as hooks of the agent."""

    def __init__(self, name: str, middlewares: tuple[Any, ...], memory: Memory) -> None:
        self.name = name
        self.memory = memory
        rest = [one for one in middlewares if not isinstance(one, HumanInTheLoopMiddleware)]
        self.before_agent = [one for one in rest if overrides(one, "before_agent")]
        self.before_model = [one for one in rest if overrides(one, "before_model")]
        self.after_model = [one for one in reversed(rest) if overrides(one, "after_model")]
        self.after_agent = [one for one in reversed(rest) if overrides(one, "after_agent")]
        self.wraps = any(overrides(one, "wrap_model_call") for one in rest)

    def install(self, registrar: Hooks, *, live: bool) -> None:
        """Register what the middlewares need."""
        if self.before_agent or self.before_model:
            name = self._named("before", self.before_agent, self.before_model)
            registrar.hook(StepStarting, name=name)(self.before)
        registrar.hook(ModelCalling, name=f"{self.name}.messages", when=_is_own)(self.show)
        if self.after_model:
            registrar.rewrite(ModelReplying, name=self._named("after_model", self.after_model), live=live)(self.after)
        if self.after_model or self.wraps:
            registrar.gate(ToolCalling, name=f"{self.name}.results")(self.answer_call)
            registrar.gate(StepEnding, name=f"{self.name}.end_with_results")(self.end_with_results)
            registrar.gate(Continuing, name=f"{self.name}.jump")(self.go_on)
        if self.after_agent or self.after_model or self.memory.fields.live:
            name = self._named("after_agent", self.after_agent) if self.after_agent else f"{self.name}.end"
            registrar.rewrite(TurnEnding, name=name, live=live or not (self.after_agent or self.after_model))(self.end)

    def _named(self, what: str, *groups: Iterable[Any]) -> str:
        names = dict.fromkeys(one.name for group in groups for one in group)
        return f"{self.name}.{what}({', '.join(names)})"

    # ------------------------------------------------------------ before

    async def before(self, event: StepStarting, turn: Turn[Any]) -> Says | None:
        """`before_agent` in the first step of a turn, and `before_model`."""
        run = Run(self.memory, turn)
        first, step = run.begin_turn(), turn.state.steps + 1
        if not first and run.view.before == step:
            return _halt(run)  # a crash came after this was written
        jump: str | None = None
        if first:
            for one in self.before_agent:
                await run.call(one, "before_agent")
                if (jump := run.jump) is not None:
                    break
        if jump not in ("end", "tools"):
            jump = await self._before_model(run)
        view = replace(run.view, before=step, step=step, results={}, jump="", by=run.by, text=None, tools=False)
        if jump == "end":
            view = replace(view, jump="end", text=run.last_text() or "")
        elif jump == "tools":
            view = replace(view, tools=True)
            self._check_calls(run)
        run.view = view
        run.keep()
        return _halt(run)

    async def _before_model(self, run: Run) -> str | None:
        """Where `before_model` goes on; a jump to the model begins them again."""
        at = restarts = 0
        while at < len(self.before_model):
            await run.call(self.before_model[at], "before_model")
            at += 1
            if run.jump == "model":
                at, restarts = 0, restarts + 1
                if restarts > RESTARTS:
                    raise HookError(f"{run.by} jumped to 'model' {restarts} times in one step", hook=run.by)
            elif run.jump is not None:
                return run.jump
        return None

    def _check_calls(self, run: Run) -> None:
        last = run.messages[-1] if run.messages else None
        if not isinstance(last, AIMessage) or not last.tool_calls:
            raise HookError(
                f"{run.by} jumped to 'tools', but the last message is not an AI message with tool calls", hook=run.by
            )

    # ------------------------------------------------------------ the request

    def show(self, event: ModelCalling, turn: Turn[Any]) -> Says | None:
        """Show the model what middlewares left of the messages, or take a message of theirs as its reply."""
        run_view = self.memory.view(turn)
        if run_view.is_whole and not run_view.tools:
            return None
        run = Run(self.memory, turn)
        decision = None
        if run_view.tools and run_view.of_step(turn.state.steps + 1):
            message = run.messages.pop()
            run.moved = True
            run.view = replace(run.view, tools=False)
            run.keep()
            made = reply_of_message(message)
            decision = Answer(ModelReply(made, finish="tool_calls"))
        if run.view.is_whole:
            return Says(decision=decision)
        messages, system = run.transcript.applied(run.view, event.request.messages)
        changes: dict[str, Any] = {"messages": messages}
        if system:
            changes |= {"system": f"{event.request.system}\n\n{system}".strip(), "sections": ()}
        return Says(rewrite=event.request.replace(**changes), decision=decision)

    # ------------------------------------------------------------ after

    async def after(self, event: ModelReplying, turn: Turn[Any]) -> ModelReply | None:
        """`after_model`, in reverse order."""
        step = turn.state.steps + 1
        run = Run(self.memory, turn, event.reply)
        shown = run.transcript.entries[-1].source
        jump = None
        for one in self.after_model:
            await run.call(one, "after_model", jumps=one is self.after_model[-1])
            if (jump := run.jump) is not None:
                break
        id = f"m{len(run.transcript.entries) - 1}"
        message = next((one for one in run.messages if one.id == id), None)
        self._check_reply(run, id)
        reply, calls = event.reply, shown.tool_calls
        if isinstance(message, AIMessage) and message != run.transcript.entries[-1].shown[0]:
            reply, calls = self._rewritten(run, event.reply, shown, message)
        elif message is None and jump != "model" and not calls:
            reply = reply.replace(message=reply.message.replace(parts=()))  # what was removed reaches nobody
        known = dict(run.view.results) if run.view.of_step(step) else {}
        results = known | run.take_results([call.id for call in shown.tool_calls])
        results = {new: results[old] for old, new in _renumbered(shown, calls, step, turn) if old in results}
        text = run.last_text()
        if jump is None:
            jump, text = self._way_on(run, message, text)
        if jump == "end" and not calls and text is None:
            jump = ""
        by = run.by or self._named("after_model", self.after_model)
        run.view = replace(run.view, step=step, results=results, jump=jump or "", by=by, text=text)
        if jump == "tools":
            run.view = replace(run.view, jump="")
        run.keep(awaits_results=bool(calls))
        return None if reply is event.reply else reply

    def _check_reply(self, run: Run, id: str) -> None:
        last = run.last_reply()
        if last is not None and last.id != id and last.tool_calls and _is_new(run, last):
            raise HookError(
                f"{self._named('after_model', self.after_model)} added a second AI message with tool calls; give it "
                "the id of the reply",
                hook=run.by or self.name,
            )

    def _way_on(self, run: Run, message: Any, text: str | None) -> tuple[str | None, str | None]:
        """Where it goes on without a jump, as in LangGraph: by the calls of the last AI message."""
        if text is not None:
            return "end", text
        if message is not None:
            return None, None
        last = run.last_reply()
        return ("model", None) if last is not None and last.tool_calls else ("end", "")

    def _rewritten(self, run: Run, reply: ModelReply, shown: Any, message: AIMessage) -> tuple[ModelReply, Any]:
        """The reply as middlewares left it. In the view it is the message of the log from now on."""
        made = reply_of_message(message, shown)
        by_id = {call.id: call for call in reply.message.tool_calls} | {
            new.id: old for new, old in zip(shown.tool_calls, reply.message.tool_calls, strict=True)
        }
        parts: list[Part] = []
        for part in made.parts:
            if isinstance(part, ToolCallPart):
                old = by_id.get(part.id) or by_id.get(part.vendor_id or "")
                part = part.replace(id="", vendor_id=old.vendor_id if old is not None else part.vendor_id)
            parts.append(part)
        changed = reply.replace(
            message=reply.message.replace(parts=tuple(parts)),
            finish=reply.finish if reply.tool_calls or not made.tool_calls else "tool_calls",
        )
        if reply.tool_calls and not made.tool_calls:
            changed = changed.replace(finish="stop")
        original = run.transcript.entries[-1].shown[0]
        run.messages = [original if one.id == message.id else one for one in run.messages]
        run.moved = True
        return changed, made.tool_calls

    def answer_call(self, event: ToolCalling, turn: Turn[Any]) -> Answer | Deny | Halt | None:
        """What middlewares said of a call: a result, or that no call of the step runs."""
        view = self.memory.view(turn)
        if not view.of_step(_step_of(event.call.id)):
            return None
        if view.jump == "end" and not view.results:
            return Halt(f"{view.by}: jump_to end", view.text)
        if (given := view.results.get(event.call.id)) is not None:
            [message] = messages_from_dict([given])
            assert isinstance(message, ToolMessage)
            result: ToolResult = result_of(message)
            return Answer(result)
        if view.jump == "model":
            return Deny(f"{view.by} did not let it run and asked the model again")
        if view.jump == "end":
            return Deny(f"{view.by}: jump_to end")
        return None

    def end_with_results(self, event: StepEnding, turn: Turn[Any]) -> Halt | None:
        """A jump to the end, after the calls of the step have got the results that middlewares gave them."""
        view = self.memory.view(turn)
        if view.jump != "end" or not view.results or not view.of_step(event.step.number):
            return None
        return Halt(f"{view.by}: jump_to end", view.text)

    def go_on(self, event: Continuing, turn: Turn[Any]) -> Any:
        """A jump to the model after a reply without calls."""
        view = self.memory.view(turn)
        if view.jump == "model" and view.of_step(turn.state.steps):
            return Vote.REQUEST, f"{view.by}: jump_to model"
        return None

    # ------------------------------------------------------------ the end

    async def end(self, event: TurnEnding, turn: Turn[Any]) -> str | None:
        """`after_agent`, in reverse order, unless the turn failed or was cancelled; then what lives as long as the turn
        is released."""
        try:
            if not isinstance(event.outcome, Completed | Stopped):
                return None
            view = self.memory.view(turn)
            text = None
            if view.jump == "end" and view.of_step(turn.state.steps) and view.text is not None:
                text = view.text
            if not self.after_agent:
                return text
            run = Run(self.memory, turn)
            for one in self.after_agent:
                await run.call(one, "after_agent")
            run.keep()
            return _final_text(run, event.text if text is None else text) or text
        finally:
            self.memory.release(turn)


def _is_own(event: ModelCalling) -> bool:
    return not event.side


def _halt(run: Run) -> Says | None:
    view = run.view
    if view.jump != "end":
        return None
    return Says(decision=Halt(f"{view.by}: jump_to end", view.text))


def _is_new(run: Run, message: Any) -> bool:
    return all(one.id != message.id for entry in run.transcript.entries for one in entry.shown)


def _renumbered(shown: Any, calls: Any, step: int, turn: Turn[Any]) -> Iterable[tuple[str, str]]:
    """The ids that the calls of a reply had, and those that they will have in the log."""
    for number, call in enumerate(calls, 1):
        old = next((one.id for one in shown.tool_calls if one.id in (call.id, call.vendor_id)), call.id)
        yield old, f"{turn.session_id}/{step}/{number}"


def _step_of(call: str) -> int:
    """The step that a call belongs to, by its id."""
    number = call.rsplit("/", 2)[-2:-1]
    return int(number[0]) if number and number[0].isdecimal() else -1


def _final_text(run: Run, before: str) -> str | None:
    """The text of the last message of the model, if a middleware changed it."""
    shown: Mapping[str | None, Any] = {one.id: one for entry in run.transcript.entries for one in entry.shown}
    for message in reversed(run.messages):
        if isinstance(message, AIMessage):
            known = shown.get(message.id)
            return None if known is not None and known == message else str(message.text)
    return None
