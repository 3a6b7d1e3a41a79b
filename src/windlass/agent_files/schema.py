"""What an agent file may say: the shape of every key."""

from __future__ import annotations

from functools import cache
from typing import Any

from windlass.events import EVENTS, FACTS

from .documents import Document
from .positions import KeyPath
from .shapes import Anything, Choice, Either, Flag, ListOf, MapOf, Number, Schema, Shape, Table, Text

NAME = r"^[^\W\d]\w*(\.[^\W\d]\w*)*"
REFERENCE = Text("a name such as 'module:function'", NAME + r":[^\W\d]\w*(\.[^\W\d]\w*)*$")
STORE = Text(
    "the address of a store: 'user' (a file in your data folder), 'memory:', 'sqlite:///FILE' or 'postgresql://…'",
    r"^(user$|memory:$|sqlite:///.|postgres(ql)?://.)",
    shown=False,
)
EFFECTS = ("ModelCall", "ToolCall", "Step", "Turn")
VERBS = ("gate", "hook", "inject", "observe", "rewrite", "transform", "wrap")

_COUNT, _ZERO = Number(whole=True, least=1), Number(whole=True, least=0)
_TEXTS = Either(Text(), ListOf(Text()))

LIMITS: dict[str, tuple[Shape, str]] = {
    "tokens": (_COUNT, "At most this many tokens in a turn, input and output together."),
    "usd": (Number(above=0), "At most this cost of a turn, in USD. An unknown cost counts as over the limit."),
    "seconds": (Number(above=0), "At most this many seconds of work in a turn."),
    "max_steps": (_COUNT, "After how many steps a turn stops."),
    "max_regenerations": (_ZERO, "How often one reply may be requested again because gates reject it."),
    "max_vetoes": (_ZERO, "How often gates may veto the stop of one turn."),
    "max_idle_steps": (_ZERO, "How many steps in a row may pass without a tool call."),
    "max_parallel": (_COUNT, "How many tool calls of one step run at the same time."),
    "max_depth": (_ZERO, "How deep sub-agents may be nested."),
    "ending_timeout": (Number(above=0), "How many seconds the hooks at the end of a step or turn may take together."),
    "observer_patience": (Number(least=0), "How many seconds the end of a turn waits for observers."),
    "injection_reserve": (_ZERO, "How many tokens of the window all injections of one request may fill."),
    "window": (_COUNT, "The size of the model's context window in tokens, if the model does not say it."),
}
CRITERIA = ("tokens", "usd", "seconds")
"""The limits that are criteria; the others are options of the agent."""

BAND = Choice("early", "normal", "guard")

HOOK_OPTIONS: dict[str, tuple[Shape, str]] = {
    "name": (Text(), "The name in records, in `explain` and in errors."),
    "tool": (_TEXTS, "Only calls that match: a name, a glob, a rule such as `bash(rm *)`, or a list of them."),
    "when": (REFERENCE, "Only if this function returns true."),
    "agent": (_TEXTS, "Only sub-agents of these names."),
    "model": (_TEXTS, "Only requests to these models."),
    "error": (_TEXTS, "Only errors of these categories."),
    "priority": (Number(whole=True), "Hooks with a higher number run earlier in their band."),
    "band": (BAND, "`guard` is nearest to what it protects."),
    "timeout": (Number(above=0), "After how many seconds the hook counts as failed."),
    "thread": (Flag(), "Whether a plain function runs in a thread."),
    "inherit": (Flag(), "Whether sub-agents get the hook, too."),
    "enabled": (REFERENCE, "A function that says, when the agent is compiled, whether the hook is used."),
    "group": (Text(), "Hooks of one group run in parallel."),
    "optional": (Flag(), "Whether a turn continues without this injection if the hook fails."),
    "reserve": (_COUNT, "At most this many tokens for what it injects."),
    "live": (Flag(), "Whether text is streamed before the hook has seen the whole reply."),
    "mode": (Choice("shadow"), "`shadow` records the answer and does not follow it."),
    "costly": (Flag(), "Whether the gate is asked only if cheaper ones let the event pass."),
    "on_resume": (Choice("reuse", "rerun"), "Whether the gate is asked again after a resume."),
    "on_error": (Choice("unreviewed"), "What a failure of a gate on ModelReplying means."),
    "wait": (Flag(), "Whether the turn waits for this observer."),
    "durable": (Flag(), "Whether the observer gets every record, also after a crash."),
    "tries": (_COUNT, "How often a durable observer is tried."),
    "side_calls": (Flag(), "Whether a wrap also surrounds side calls."),
    "read_only": (Flag(), "Whether the wrap only reads the turn."),
    "channels": (ListOf(Choice("text", "thinking", "arguments")), "What a transformer gets."),
}
_EVENTS = sorted({kind.__name__ for kind in (*EVENTS, *FACTS)} | {*EFFECTS, "Record"})
HOOK = Table(
    {
        "verb": (Choice(*VERBS), "What the hook does."),
        "event": (Choice(*_EVENTS), "The event, the fact to observe or the effect to wrap."),
        "run": (REFERENCE, "The function, as `module:function`."),
        **HOOK_OPTIONS,
    },
    required=("verb", "run"),
)

CAPABILITY = Table(
    {
        "use": (Text(), "The name of the entry point, or `module:Class`. By default the name of the table."),
        "band": (BAND, "The band of its hooks. `guard` is nearest to what it protects."),
        "load": (Text(), "A file from which the capability is loaded, such as the policy of `permissions`."),
    },
    others=True,
)

OPTIONS = Table({}, others=True)
"""Options that are checked against the signature of a constructor."""

MODEL = Either(
    Text("a model such as 'openai:gpt-5'", r"^[^:]+:.+"),
    Table({"use": (Text(), "The model, as `vendor:model` or `module:object`.")}, required=("use",), others=True),
)


class _Subagent:
    """A sub-agent: another agent file, or the keys of an agent in a table."""

    words = "a table with file, or with the keys of an agent"
    kinds: tuple[type, ...] = (dict,)

    def check(self, value: Any, path: KeyPath, document: Document) -> None:
        shape = BY_FILE if isinstance(value, dict) and "file" in value else subagent_shape()
        shape.check(value, path, document)

    def schema(self) -> Schema:
        return {"anyOf": [{"$ref": "#/$defs/subagent_file"}, {"$ref": "#/$defs/subagent"}]}


_TASKS: dict[str, tuple[Shape, str]] = {
    "description": (Text(), "What the sub-agent is good for: the calling model reads it."),
    "share": (Number(above=0), "Limit one task to this part of the tokens and money that are left, up to 1."),
}
BY_FILE = Table({"file": (Text(), "An agent file, relative to this one."), **_TASKS}, required=("file",))

_COMMON: dict[str, tuple[Shape, str]] = {
    "name": (Text(), "The name in logs, in `explain` and as a sub-agent. By default that of the file."),
    "model": (MODEL, "The model, such as `openai:gpt-5`, or a table with `use` and options such as `base_url`."),
    "fallbacks": (ListOf(MODEL), "The models that are asked when the model fails, in this order."),
    "settings": (MapOf(Anything()), "Settings of the model, such as `temperature` and `max_tokens`."),
    "system": (Text(empty=True), "The system text."),
    "system_file": (Text(), "A file with the system text, instead of `system`."),
    "output": (
        Either(REFERENCE, MapOf(Anything())),
        "The type of the answer: `module:Class`, or a table with a JSON schema.",
    ),
    "tools": (ListOf(REFERENCE), "Tools, as `module:function`."),
    "capabilities": (MapOf(CAPABILITY), "Capabilities with their options, in this order."),
    "workspace": (OPTIONS, "The tools for files in a folder: the options of `Workspace`."),
    "mcp": (MapOf(OPTIONS), "MCP servers by name, each with the options of `MCP`, such as `command` or `url`."),
    "hooks": (ListOf(HOOK), "Hooks, as `module:function` with verb, event and options."),
    "limits": (Table(LIMITS), "Limits of a turn, and bounds of the agent."),
    "unmatched": (Choice("allow", "ask", "deny"), "What happens to a tool call that no gate answers."),
    "subagents": (MapOf(_Subagent()), "Agents that this one can give tasks, by name."),
    "secrets": (ListOf(Text()), "Environment variables whose values are masked in the log."),
}


@cache
def agent_shape() -> Table:
    """The shape of a whole agent file."""
    own: dict[str, tuple[Shape, str]] = {
        "store": (STORE, "Where sessions are stored. Without it, in memory."),
        "busy": (Choice("refuse", "queue", "steer"), "What happens to a message for a session that is busy."),
    }
    return Table({**_COMMON, **own}, required=("model",))


@cache
def subagent_shape() -> Table:
    """The shape of a sub-agent in a table. It works in the store of the agent above."""
    own = {name: shape for name, shape in _COMMON.items() if name != "name"}
    return Table({**own, **_TASKS}, required=("model",))
