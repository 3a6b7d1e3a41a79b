"""Stored descriptions of agents as the page shows them: hooks point by point, what they look at, and what changed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal

import msgspec

from windlass.decisions import Deny, Vote
from windlass.events import EVENTS, LIFECYCLE
from windlass.records import KINDS

from .words import Data

_EVENTS = {event.__name__: event for event in EVENTS}
_WRAPS = {"ModelCall": "wrap(ModelCall)", "ToolCall": "wrap(ToolCall)", "Step": "wrap(Step)", "Turn": "wrap(Turn)"}
_LOOKS = ("hook", "rewrite", "gate")
_VERBS = ("hook", "rewrite", "gate", "costly gate", "shadow gate", "inject", "wrap", "transform", "strategy")

Sees = Literal["always", "maybe", "no"]


def read_pipeline(data: bytes | None) -> Data:
    """A stored description as plain data; an empty one without data."""
    if data is None:
        return {}
    try:
        found = msgspec.json.decode(data)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def is_detailed(pipeline: Data) -> bool:
    """Whether a description says what hooks look at. Those of older versions do not."""
    return "transforms" in pipeline


def stage_of(hook: Data) -> str:
    """The verb of a hook, with what changes its meaning."""
    if hook["kind"] != "gate":
        return str(hook["kind"])
    return "shadow gate" if hook.get("shadow") else "costly gate" if hook.get("costly") else "gate"


def points(pipeline: Data) -> list[Data]:
    """The points of the lifecycle in order, each with its hooks in the order in which they are asked."""
    placed: dict[str, list[Data]] = {}
    for hook in pipeline.get("hooks", ()):
        if hook["kind"] != "observe":
            event = str(hook["event"])
            placed.setdefault(_WRAPS.get(event, event), []).append(_hook(hook, pipeline))
    for one in pipeline.get("transforms", ()):
        fails = "the attempt fails; nothing that was held back is released"
        on = ", ".join(one.get("channels", ()))
        whose = {"name": one["name"], "band": one.get("band", "normal"), "capability": one.get("capability", "")}
        row = {"verb": "transform", "event": "token stream", "fails": fails, "on": [f"on {on}"], **whose}
        placed.setdefault("token stream", []).append(row)
    for name in pipeline.get("compactors", ()):
        row = {"verb": "strategy", "event": "Compacting", "name": name, "band": "normal", "fails": "", "on": []}
        placed.setdefault("Compacting", []).append({**row, "capability": ""})
    order = [place if isinstance(place, str) else place.__name__ for place in LIFECYCLE]
    made: list[Data] = []
    for name in order:
        hooks = sorted(placed.get(name, ()), key=lambda one: _VERBS.index(one["verb"]))
        made.append({"point": name, "hooks": hooks, "holds": [one["name"] for one in hooks if one.get("holds")]})
    return made


def _hook(hook: Data, pipeline: Data) -> Data:
    conditions = {name: f"on {hook[name]}" for name in ("tool", "agent", "model", "error") if hook.get(name)}
    if hook.get("when"):
        conditions["when"] = f"when {hook['when']}"
    more = [word for name, word in (("thread", "in a thread"), ("inherit", "also for sub-agents")) if hook.get(name)]
    if hook.get("timeout"):
        more.append(f"at most {hook['timeout']:g} s")
    if hook.get("group"):
        more.append(f"in parallel, {hook['group']}")
    verb = stage_of(hook)
    holds = hook["event"] in ("ModelReplying", "TurnEnding") and verb in ("hook", "rewrite", "gate", "costly gate")
    return {
        "name": hook["name"],
        "verb": verb,
        "event": hook["event"],
        "band": hook.get("band", "normal"),
        "priority": hook.get("priority", 0),
        "capability": hook.get("capability", ""),
        "on": [*conditions.values(), *more],
        "fails": fails(hook) if is_detailed(pipeline) else "",
        "holds": holds and is_detailed(pipeline) and not hook.get("live"),
        "tool": hook.get("tool"),
    }


def fails(hook: Data) -> str:
    """What happens if a hook raises or takes too long."""
    kind, event = hook["kind"], _EVENTS.get(hook["event"])
    if kind == "inject":
        return "skipped" if hook.get("optional") else "the turn fails"
    if kind == "wrap":
        return "the error propagates"
    if hook.get("shadow"):
        return "only recorded"
    raised = None if event is None else event.raised
    if kind != "gate":
        return "the call is denied" if raised is Deny else "the turn fails"
    if raised is None or hook.get("on_error") == "unreviewed":
        return "no answer; the outcome is unreviewed"
    return f"Vote.{raised.name}" if isinstance(raised, Vote) else str(raised.__name__)


def observers(pipeline: Data) -> list[Data]:
    """Who is told of facts, by fact."""
    found = [hook for hook in pipeline.get("hooks", ()) if hook["kind"] == "observe"]
    return [{"name": one["name"], "fact": one["event"], "written": one["event"] in KINDS} for one in found]


# ---------------------------------------------------------------- which gate sees which tool


def sees(matcher: str | None, tool: str) -> Sees:
    """Whether a hook with this matcher, as it is stored, is asked about each call of a tool."""
    if not matcher:
        return "always"
    found = [_sees(one.strip(), tool) for one in matcher.split(" or ")]
    return "always" if "always" in found else "maybe" if "maybe" in found else "no"


def _sees(one: str, tool: str) -> Sees:
    if len(one) > 1 and one.startswith("/") and one.endswith("/"):
        try:
            return "maybe" if _is_slow(one[1:-1], tool) else "always" if re.search(one[1:-1], tool) else "no"
        except re.error:
            return "maybe"
    name, bracket, rest = one.partition("(")
    if bracket and rest == ")":  # a function, whose name says nothing
        return "maybe"
    if not fnmatchcase(tool, name):
        return "no"
    return "maybe" if bracket else "always"


def _is_slow(pattern: str, tool: str) -> bool:
    """Whether a pattern from a log could take long: one that repeats groups, or repeats often, or is very long."""
    nested = re.search(r"\)[*+?{]|\\\d", pattern) is not None
    return nested or len(re.findall(r"[*+?{]", pattern)) > 3 or len(pattern) + len(tool) > 400


def condition(hook: Data, tool: str) -> Sees:
    """Whether a hook is asked about each call of a tool; other conditions make it uncertain."""
    found = sees(hook.get("tool"), tool)
    uncertain = any(hook.get(name) for name in ("agent", "when"))
    return "maybe" if found == "always" and uncertain else found


def mediation(pipeline: Data, effects: Mapping[str, str]) -> Data:
    """For each tool its effect, the hooks that are asked about its calls in order, and whether nothing could refuse an
    unsafe one. Effects that the description lacks are in `effects`."""
    if not is_detailed(pipeline):
        return {name: {"effect": effect, "looks": [], "bare": False} for name, effect in effects.items()}
    asked = [one for one in pipeline["hooks"] if one["event"] == "ToolCalling" and one["kind"] in _LOOKS]
    asked.sort(key=lambda one: _VERBS.index(stage_of(one)))
    known = {one["name"]: one for one in pipeline.get("tools", ())}
    refuses = pipeline.get("unmatched", "allow") != "allow"
    found: Data = {}
    for name in dict.fromkeys([*known, *effects]):
        looks = [(one, planned) for one in asked if (planned := condition(one, name)) != "no"]
        gates = [one for one, _ in looks if one["kind"] != "rewrite" and not one.get("shadow")]
        tool = known.get(name, {})
        effect = tool.get("effect") or effects.get(name, "")
        bare = not gates and not refuses and not tool.get("agent") and effect not in ("pure", "idempotent")
        views = [{"name": one["name"], "verb": stage_of(one), "planned": planned} for one, planned in looks]
        found[name] = {"effect": effect, "looks": views, "bare": bare}
    return found


def around_models(pipeline: Data) -> list[Data]:
    """The hooks that are asked about model calls, before they leave and when replies are there, in order."""
    if not is_detailed(pipeline):
        return []
    events = ("ModelCalling", "ModelReplying")
    asked = [one for one in pipeline["hooks"] if one["event"] in events and one["kind"] in _LOOKS]
    asked.sort(key=lambda one: _VERBS.index(stage_of(one)))
    return [
        {"name": one["name"], "verb": stage_of(one), "event": one["event"],
         "planned": "maybe" if any(one.get(name) for name in ("model", "agent", "when")) else "always"}
        for one in asked
    ]  # fmt: skip


# ---------------------------------------------------------------- what changed


_SAME = ("kind", "event", "name")


def changes(old: Data, new: Data) -> list[Data]:
    """What differs between two descriptions: each with what it is about, how, and the two values."""
    if not old or not new:
        return []
    both = is_detailed(old) and is_detailed(new)
    keys = None if both else ("band", "priority")
    found = [
        *_changed("hook", _by_label(old, keys), _by_label(new, keys)),
        *_changed("tool", _tools(old, both=both), _tools(new, both=both)),
        *_changed("criterion", dict.fromkeys(old.get("criteria", ())), dict.fromkeys(new.get("criteria", ()))),
    ]
    if both:
        found += _changed("transformer", _named(old, "transforms"), _named(new, "transforms"))
        found += _changed("strategy", dict.fromkeys(old["compactors"]), dict.fromkeys(new["compactors"]))
        if old.get("unmatched") != new.get("unmatched"):
            found.append(_change("rule", "unmatched tools", old.get("unmatched"), new.get("unmatched")))
    return [*found, *_prompt_changes(old.get("prompt") or {}, new.get("prompt") or {})]


def _prompt_changes(old: Data, new: Data) -> list[Data]:
    found: list[Data] = []
    for name, title in (("model", "model"), ("output_schema", "schema of the output"), ("settings", "settings")):
        if old.get(name) != new.get(name):
            found.append(_change("prompt", title, old.get(name), new.get(name)))
    texts = [{str(one.get("origin")): one.get("text", "") for one in part.get("sections", ())} for part in (old, new)]
    for origin in dict.fromkeys([*texts[0], *texts[1]]):
        before, after = texts[0].get(origin), texts[1].get(origin)
        if before != after:
            whose = "of the agent" if origin == "None" else f"of {origin}"
            found.append(_change("prompt", f"system text {whose}", before, after))
    return found


def _by_label(pipeline: Data, keys: tuple[str, ...] | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for hook in pipeline.get("hooks", ()):
        label, number = f"{hook['name']} ({hook['kind']} on {hook['event']})", 2
        while label in found:
            label = f"{hook['name']} no. {number} ({hook['kind']} on {hook['event']})"
            number += 1
        found[label] = {key: hook[key] for key in hook if key not in _SAME and (keys is None or key in keys)}
    return found


def _tools(pipeline: Data, *, both: bool) -> dict[str, Any]:
    names = ("digest", "effect") if both else ("digest",)
    return {one["name"]: {name: one.get(name) for name in names} for one in pipeline.get("tools", ())}


def _named(pipeline: Data, field: str) -> dict[str, Any]:
    return {one["name"]: {key: one[key] for key in one if key != "name"} for one in pipeline.get(field, ())}


def _changed(what: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterable[Data]:
    for name in old:
        if name not in new:
            yield {"what": what, "name": name, "how": "gone", "fields": []}
    for name, value in new.items():
        if name not in old:
            yield {"what": what, "name": name, "how": "new", "fields": []}
        elif old[name] != value:
            before = old[name]
            keys = [key for key in dict.fromkeys([*before, *value]) if before.get(key) != value.get(key)]
            fields = [{"name": key, "before": _said(before.get(key)), "after": _said(value.get(key))} for key in keys]
            yield {"what": what, "name": name, "how": "changed", "fields": fields}


def _change(what: str, name: str, old: Any, new: Any) -> Data:
    fields = [{"name": name, "before": _said(old), "after": _said(new)}]
    return {"what": what, "name": name, "how": "changed", "fields": fields}


def _said(value: Any) -> str | None:
    if value is None:
        return None
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
