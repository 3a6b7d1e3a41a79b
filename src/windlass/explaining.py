"""Explains a compiled agent like a query plan: as plain data, and as text for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from ._hooks.compiled import CompiledHooks, Point
from ._hooks.conceals import Conceal
from ._hooks.hooks import Hook, location_of
from ._hooks.reveals import Reveal
from ._hooks.streams import Transform
from ._kernel.contracts import PHASES, Composites
from ._kernel.delegation import Delegate
from ._kernel.descriptions import errors_text, matcher_text
from ._kernel.matchers import matcher_warnings
from ._kernel.program import BOUNDS, Program
from ._text import entry, items
from .context.compaction import Compactor
from .criteria import Limit, name_of
from .decisions import Deny, Vote
from .events import FACTS, LIFECYCLE, Event
from .messages import thawed
from .pipeline import DEFAULT
from .policies import CATEGORIES, ErrorPolicy
from .records import Record
from .tools import Tool
from .types import Criterion

Data: TypeAlias = dict[str, Any]


class Explanation:
    """A compiled agent, explained: `str` gives text of at most 100 columns, `data` is plain data, also as `json()`.

    A hook without a band or priority in the text has the band `normal` and priority 0. Sources inside the current
    directory are relative to it.
    """

    __slots__ = ("data",)

    def __init__(self, data: Data) -> None:
        self.data = data

    def json(self) -> str:
        """The data as JSON text."""
        return json.dumps(self.data, indent=2, ensure_ascii=False)

    def __str__(self) -> str:
        return "\n".join(_lines(self.data))

    def __repr__(self) -> str:
        return f"<Explanation of agent {self.data['agent']!r}>"


def describe_agent(program: Program, *, capabilities: Sequence[Data], output: str) -> Data:
    """A compiled agent as plain data."""
    hooks = program.hooks
    points = [_point(place, hooks) for place in LIFECYCLE]
    return {
        "agent": program.name,
        "pipeline": program.digest,
        "variant": _variant(program),
        "models": [_model(name, model, program.brought_models.get(name)) for name, model in program.models.items()],
        "output": output,
        "scope": [{"agent": name, "type": getattr(kind, "__name__", str(kind))} for name, kind in program.scopes],
        "capabilities": list(capabilities),
        "reveals": [_reveal(reveal) for reveal in program.reveals],
        "conceals": [_conceal(conceal) for conceal in program.conceals],
        "tools": [_tool(tool) for tool in program.tools.values()],
        "points": [point for point in points if point["stages"]],
        "silent": [point["point"] for point in points if not point["stages"]],
        "observers": _observers(hooks),
        "compactors": [_compactor(compactor, program) for compactor in program.compactors],
        "stream": {"held_by": [_hook_label(hook) for hook in hooks.holders]},
        "criteria": [
            {**_criterion(criterion, program.clock.now), "default": criterion is program.default_limit}
            for criterion in program.criteria
        ],
        "errors": _policy(program.policy),
        "bounds": {name: getattr(program, name) for name in BOUNDS},
        "composites": _custom_composites(program.composites),
        "handlers": _handlers(program),
        "store": {"type": type(program.store).__name__, "durable": program.store.durable},
        "storages": [{"name": name, "capability": capability} for name, capability in program.home.declared],
        "not_mediated": _not_mediated(program),
        "warnings": [
            *matcher_warnings(program),
            *[f"capability {one['name']!r}: {text}" for one in capabilities for text in one["warnings"]],
        ],
    }


# ---------------------------------------------------------------- models, tools and hooks


def _variant(program: Program) -> Data | None:
    """The options in which a variant differs from its agent, without secrets."""
    options = program.options
    if options is None:
        return None
    plain: Data = thawed(msgspec.to_builtins(options))
    plain.pop("pipeline", None)
    return plain if program.mask is None else dict(program.mask.plain(plain))


def _model(name: str, model: object, capability: str | None) -> Data:
    return {
        "name": name,
        "type": type(model).__name__,
        "streams": hasattr(model, "stream"),
        "capability": capability,
    }


def _tool(tool: Tool[..., Any]) -> Data:
    return {
        "name": tool.name,
        "effect": tool.effect,
        "retry": tool.retry,
        "runs": "async" if tool.is_async else "inline" if tool.inline else "thread",
        "sequential": tool.sequential,
        "timeout": tool.timeout,
        "hidden_defaults": list(tool.hidden_defaults),
        "agent": tool.agent if isinstance(tool, Delegate) else None,
        "capability": tool.capability,
        "source": None if isinstance(tool, Delegate) else _source(location_of(tool.fn)),
    }


def _point(place: type[Event[Any, Any, Any]] | str, hooks: CompiledHooks) -> Data:
    """One point of the lifecycle and its stages, in the order in which they run."""
    if not isinstance(place, str):
        point = hooks.at(place)
        return {"point": place.__name__, "stages": [] if point is None else _stages(_stages_of(point))}
    others: dict[str, tuple[str, Iterable[Data]]] = {
        "token stream": ("transform", map(_transform, hooks.transforms)),
        "wrap(Turn)": ("wrap", map(_hook, hooks.turn_wraps)),
        "wrap(Step)": ("wrap", map(_hook, hooks.step_wraps)),
        "wrap(ModelCall)": ("wrap", map(_hook, hooks.model_wraps)),
        "wrap(ToolCall)": ("wrap", map(_hook, hooks.tool_wraps)),
    }
    return {"point": place, "stages": _stages([others[place]])}


def _stages_of(point: Point) -> list[tuple[str, Iterable[Data]]]:
    return [
        ("hook", [_hook(hook) for hook in point.changing if hook.kind == "hook"]),
        ("rewrite", [_hook(hook) for hook in point.changing if hook.kind == "rewrite"]),
        ("gate", map(_hook, point.gates)),
        ("costly gate", map(_hook, point.costly)),
        ("shadow gate", map(_hook, point.shadows)),
        ("inject", [_hook(hook) for group in point.groups for hook in group]),
    ]


def _stages(candidates: Iterable[tuple[str, Iterable[Data]]]) -> list[Data]:
    return [{"stage": stage, "hooks": rows} for stage, hooks in candidates if (rows := list(hooks))]


def _observers(hooks: CompiledHooks) -> list[Data]:
    observed = [(fact, hooks.observers[fact]) for fact in (Record, *FACTS) if fact in hooks.observers]
    return [{"fact": fact.__name__, "hooks": [_hook(hook) for hook in observers]} for fact, observers in observed]


def _hook(hook: Hook) -> Data:
    return {
        "kind": hook.kind,
        "name": hook.name,
        "source": _source(hook.location),
        "band": hook.band,
        "priority": hook.priority,
        "tool": None if hook.tool is None else matcher_text(hook.tool),
        "agent": None if hook.agent is None else matcher_text(hook.agent),
        "model": None if hook.model is None else matcher_text(hook.model),
        "error": None if hook.error is None else errors_text(hook.error),
        "when": _when(hook.when),
        "capability": hook.capability,
        "runs": _runs(hook),
        "timeout": hook.timeout,
        "thread": hook.thread,
        "live": hook.live,
        "side_calls": hook.side_calls,
        "read_only": hook.read_only,
        "on_resume": hook.on_resume,
        "optional": hook.optional,
        "group": hook.group,
        "wait": hook.wait,
        "durable": hook.durable,
        "inherit": hook.inherit,
        "fails": fail_mode(hook),
    }


def _when(when: Any) -> str | None:
    return None if when is None else f"{name_of(when)} at {_source(location_of(when))}"


def _transform(transform: Transform) -> Data:
    return {
        "kind": "transform",
        "name": transform.name,
        "source": _source(location_of(getattr(transform.factory, "feed", transform.factory))),
        "band": transform.band,
        "priority": transform.priority,
        "channels": list(transform.channels),
        "when": _when(transform.when),
        "capability": transform.capability,
        "inherit": transform.inherit,
        "fails": "the attempt fails; text that was held back is not released",
    }


def _conceal(conceal: Conceal) -> Data:
    return {
        "name": conceal.name,
        "source": _source(location_of(conceal.fn)),
        "of": [what for what in ("errors", "answers") if getattr(conceal, what)],
        "capability": conceal.capability,
        "inherit": conceal.inherit,
        "fails": "errors are withheld, answers refused",
    }


def _reveal(reveal: Reveal) -> Data:
    return {
        "name": reveal.name,
        "source": _source(location_of(reveal.fn)),
        "tool": None if reveal.tool is None else matcher_text(reveal.tool),
        "capability": reveal.capability,
        "inherit": reveal.inherit,
        "fails": "the tool does not run",
    }


def _compactor(compactor: Compactor, program: Program) -> Data:
    """A compaction strategy with its settings and notes, if it describes itself."""
    describe = getattr(compactor, "explained", None)
    settings = dict(describe(program.budget.windows.get(program.model_name))) if describe is not None else {}
    notes = settings.pop("notes", [])
    return {"name": compactor.name, "type": type(compactor).__name__, "notes": notes, "settings": settings}


def _hook_label(hook: Hook) -> Data:
    return {"kind": hook.kind, "name": hook.name, "event": hook.event.__name__}


def _runs(hook: Hook) -> str:
    """`async`, `inline` on the event loop, or in a `thread`."""
    if hook.is_async:
        return "async"
    in_thread = {"wrap": True, "observe": hook.thread or not hook.wait}.get(hook.kind, hook.thread)
    return "thread" if in_thread else "inline"


def fail_mode(hook: Hook) -> str:
    """What happens if the hook raises or times out. A gate then counts as the answer that its event names."""
    if hook.kind == "observe":
        if hook.durable:
            return f"{hook.tries} tries in all; then the fact is skipped, which is recorded"
        return "logged; the turn is not affected"
    if hook.kind == "inject":
        return "skipped and recorded" if hook.optional else "the turn fails"
    if hook.kind == "wrap":
        return "the error propagates"
    if hook.shadow:
        return "only recorded"
    raised = hook.event.raised
    if hook.kind != "gate":
        return "the action fails (Deny)" if raised is Deny else "the turn fails"
    if raised is None or hook.on_error == "unreviewed":
        return "counts as no answer; the outcome is marked unreviewed"
    return f"Vote.{raised.name}" if isinstance(raised, Vote) else str(raised.__name__)


def _source(location: tuple[str, int] | None) -> str:
    """`path:line`, relative to the current directory if the path is inside it."""
    if location is None:
        return "unknown"
    path, line = location
    here = Path.cwd()
    inside = Path(path).is_relative_to(here)
    return f"{Path(path).relative_to(here) if inside else path}:{line}"


# ---------------------------------------------------------------- rules and limits


def _criterion(criterion: Criterion, now: object) -> Data:
    shape: object = criterion
    fields = shape.__struct_fields__ if isinstance(shape, Struct) else ()
    values = {name: getattr(criterion, name) for name in fields}
    return {
        "name": name_of(criterion),
        "parameters": {name: _parameter(value) for name, value in values.items() if value is not None and value != now},
        "stops": criterion.reason.value if isinstance(criterion, Limit) else None,
        "source": None if isinstance(shape, Struct) else _source(location_of(criterion)),
    }


def _parameter(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    return value if isinstance(value, bool | int | float | str) else name_of(value)


def _policy(policy: ErrorPolicy) -> Data:
    return {
        "actions": {category: policy.action(category) for category in CATEGORIES},
        "retries": policy.retries,
        "total": policy.total,
        "delay": policy.delay,
        "cap": policy.cap,
        "rules": [rule.words for rule in policy.rules],
    }


def _custom_composites(composites: Composites) -> Data:
    """The composites that replace those of the kernel."""
    pairs = [(name, getattr(composites, name)) for name in Composites.__struct_fields__]
    return {name: name_of(factory) for name, factory in pairs if factory is not getattr(DEFAULT, name)}


def _handlers(program: Program) -> list[Data]:
    return [
        {"phase": phase, "name": name_of(handler), "source": _source(location_of(handler.handle))}
        for phase in PHASES
        for handler in program.handlers.get(phase, ())
    ]


def _not_mediated(program: Program) -> list[str]:
    gaps = [
        "tools that a vendor runs itself: they arrive as parts with mediated=False, after they ran",
        "the code inside a tool or a hook: hooks see a call and its result, nothing in between",
        "turn.ask: only hooks of the guard band and wraps with side_calls=True see it",
    ]
    in_threads = [tool.name for tool in program.tools.values() if not tool.is_async and not tool.inline]
    if in_threads:
        gaps.append(f"a plain function in a thread cannot be stopped once it runs: {', '.join(in_threads)}")
    return gaps


# ---------------------------------------------------------------- as text

_COLUMN = 17


def _lines(data: Data) -> list[str]:
    lines = [f"Agent {data['agent']!r}, pipeline {data['pipeline']}", ""]
    lines += _about(data)
    lines += ["", "Lifecycle, in the order in which it runs"]
    lines += [line for point in data["points"] for line in _point_lines(point["point"], point["stages"])]
    lines += [_row("", f"no hooks at: {', '.join(data['silent']) or '–'}", column=2)]
    if data["observers"]:
        lines += ["", "Observers"]
        for row in data["observers"]:
            lines += _point_lines(row["fact"], [{"stage": "observe", "hooks": row["hooks"]}])
    lines += ["", *_rules(data)]
    if data["warnings"]:
        lines += ["", "Warnings", *[entry("-", text, indent=2, column=4) for text in data["warnings"]]]
    lines += [
        "",
        "Not mediated: hooks do not see or cannot stop this",
        *[entry("-", text, indent=2, column=4) for text in data["not_mediated"]],
    ]
    return lines


def _row(label: str, text: str, *, column: int = _COLUMN) -> str:
    return entry(label, text, indent=0, column=column)


def _about(data: Data) -> list[str]:
    models = [_model_words(model) for model in data["models"]]
    lines = [] if data["variant"] is None else [_row("variant with", items(_variant_words(data["variant"])))]
    lines.append(_row("model", models[0]))
    if models[1:]:
        lines.append(_row("other models", ", ".join(models[1:])))
    if data["output"] != "str":
        lines.append(_row("output", data["output"]))
    if data["scope"]:
        lines.append(_row("needs scope", ", ".join([f"{one['type']} ({one['agent']})" for one in data["scope"]])))
    for position, capability in enumerate(data["capabilities"]):
        lines.append(_row("" if position else "capabilities", items(_capability_words(capability))))
    held = [f"{hook['name']} ({hook['kind']} on {hook['event']})" for hook in data["stream"]["held_by"]]
    lines.append(_row("stream held by", ", ".join(held) or "nothing: text is streamed as it arrives"))
    for position, compactor in enumerate(data["compactors"]):
        lines.append(_row("" if position else "compaction", items(_compactor_words(compactor))))
    for position, reveal in enumerate(data["reveals"]):
        lines.append(_row("" if position else "reveal", items(_hook_words({**_QUIET, **reveal}))))
    for position, conceal in enumerate(data["conceals"]):
        words = items(_hook_words({**_QUIET, "tool": None, **conceal}))
        lines.append(_row("" if position else "conceal", f"{words}, of {' and '.join(conceal['of'])}"))
    lines.append(_row("tools", "" if data["tools"] else "none"))
    return lines + [entry(tool["name"], items(_tool_words(tool)), indent=2, column=_COLUMN) for tool in data["tools"]]


def _variant_words(options: Data) -> Iterable[str]:
    if "model" in options:
        yield f"model {options['model']}"
    if "settings" in options:
        yield f"settings {json.dumps(options['settings'], ensure_ascii=False)}"
    if "criteria" in options:
        yield f"criteria {', '.join([criterion['name'] for criterion in options['criteria']])}"
    if "tools" in options:
        yield f"tools {', '.join(options['tools'])}"


def _model_words(model: Data) -> str:
    notes = ["streams"] if model["streams"] else []
    if model["capability"] is not None:
        notes.append(f"from {model['capability']}")
    return f"{model['name']} ({', '.join(notes)})" if notes else str(model["name"])


def _capability_words(capability: Data) -> Iterable[str]:
    yield capability["name"]
    if capability["band"] != "normal":
        yield f"{capability['band']} band"
    if capability["summary"]:
        yield capability["summary"]


def _compactor_words(compactor: Data) -> Iterable[str]:
    yield compactor["name"]
    yield from [f"{name} {value}" for name, value in compactor["settings"].items() if value not in (None, [], False)]
    yield from [f"note: {note}" for note in compactor["notes"]]


def _tool_words(tool: Data) -> Iterable[str]:
    if tool["agent"]:
        yield f"sub-agent {tool['agent']!r}"
    yield tool["effect"] + (", may be retried" if tool["retry"] == "safe" else "")
    yield _RUNS[tool["runs"]]
    if tool["sequential"]:
        yield "sequential"
    if tool["timeout"] is not None:
        yield f"timeout {tool['timeout']:g} s"
    if tool["hidden_defaults"]:
        yield f"hooks do not see the defaults of {', '.join(tool['hidden_defaults'])}: they have no JSON form"
    if tool["source"] is not None:
        yield tool["source"]
    if tool["capability"] is not None:
        yield f"from {tool['capability']}"


def _point_lines(name: str, stages: Iterable[Data]) -> list[str]:
    lines = [f"  {name}"]
    for stage in stages:
        texts = [items(_hook_words(hook)) for hook in stage["hooks"]]
        lines += [entry(stage["stage"], text, indent=4, column=_COLUMN) for text in texts]
    return lines


def _hook_words(hook: Data) -> Iterable[str]:
    """The words that describe a hook; defaults are left out."""
    yield hook["name"]
    yield hook["source"]
    if hook["band"] != "normal":
        yield f"{hook['band']} band"
    if hook["priority"]:
        yield f"priority {hook['priority']}"
    yield from [f"{option} {hook[option]}" for option in _CONDITIONS if hook.get(option) is not None]
    if "channels" in hook:
        yield "on " + ", ".join(hook["channels"])
    if hook.get("capability"):
        yield f"from {hook['capability']}"
    if "runs" in hook:
        yield _RUNS[hook["runs"]]
    if hook.get("timeout") is not None:
        yield f"timeout {hook['timeout']:g} s"
    if hook.get("group"):
        yield f"in parallel group {hook['group']!r}"
    if hook.get("on_resume") == "rerun":
        yield "always asked again on resume"
    if hook.get("on_resume") == "reuse":
        yield "keeps its answer on resume"
    yield from [words for option, words in _FLAGS.items() if hook.get(option)]
    yield f"if it fails: {hook['fails']}"


_QUIET = {"band": "normal", "priority": 0}
_CONDITIONS = ("tool", "agent", "model", "error", "when")
_RUNS = {"async": "async", "inline": "inline", "thread": "in a thread"}
_FLAGS = {
    "optional": "optional",
    "live": "live: does not hold the stream",
    "side_calls": "side calls too",
    "wait": "awaited before the next point",
    "durable": "durable: reads the log",
    "inherit": "sub-agents inherit it",
}


def _rules(data: Data) -> list[str]:
    errors, lines = data["errors"], []
    for position, criterion in enumerate(data["criteria"] or [None]):
        text = "none: a turn ends after its first step" if criterion is None else items(_criterion_words(criterion))
        lines.append(_row("" if position else "criteria", text))
    for position, rule in enumerate(errors["rules"]):
        lines.append(_row("" if position else "error rules", rule))
    for position, action in enumerate(dict.fromkeys(errors["actions"].values())):
        categories = [category for category, its_action in errors["actions"].items() if its_action == action]
        lines.append(_row("" if position else "errors", f"{action}: {', '.join(categories)}"))
    wait = f"; the first waits up to {errors['delay']:g} s, each further one twice as long" if errors["delay"] else ""
    lines.append(_row("", f"at most {errors['retries']} retries in a row, {errors['total']} in a turn{wait}"))
    lines.append(_row("bounds", items(f"{name} {value}" for name, value in data["bounds"].items())))
    lines += [
        _row("composite", f"{name}: {custom} instead of the kernel's") for name, custom in data["composites"].items()
    ]
    lines += [_row("phase handler", f"{h['phase']}: {h['name']} · {h['source']}") for h in data["handlers"]]
    durable = "durable" if data["store"]["durable"] else "not durable: its content is lost when the process ends"
    lines.append(_row("store", f"{data['store']['type']}, {durable}"))
    for position, one in enumerate(data["storages"]):
        origin = f" ({one['capability']})" if one["capability"] else ""
        lines.append(_row("" if position else "storage", f"{one['name']}{origin}"))
    return lines


def _criterion_words(criterion: Data) -> Iterable[str]:
    parameters = ", ".join(f"{name}={value!r}" for name, value in criterion["parameters"].items())
    yield f"{criterion['name']}({parameters})" if parameters else criterion["name"]
    if criterion["stops"]:
        yield f"stops with {criterion['stops']}"
    if criterion["default"]:
        yield "the default: change it with max_steps"
    if criterion["source"]:
        yield criterion["source"]
