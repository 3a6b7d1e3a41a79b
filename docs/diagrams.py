"""The diagrams of docs/concepts.md as SVG in the colours of the inspector; what events allow comes from the code."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path

from windlass.events import EVENTS

TOKENS = Path(__file__).resolve().parent.parent / "src" / "windlass" / "inspector" / "static" / "css" / "tokens.css"
FOLDER = "diagrams"
WIDTH = 680
RULES = """
text { font: 13px system-ui, -apple-system, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif; fill: var(--ink); }
.code { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 12px; }
.strong { font-weight: 640; }
.quiet { fill: var(--ink-3); font-size: 12px; }
.box { fill: var(--paper); stroke: var(--line-2); }
.sunk { fill: var(--sunk); stroke: var(--line-2); }
.spent { fill: var(--spent); stroke: none; }
.tool { fill: var(--tool); stroke: none; }
.on { fill: var(--paper); }
.line { fill: none; stroke: var(--line-3); stroke-width: 1.5; }
.rail { fill: none; stroke: var(--spent); stroke-width: 2; }
.deny { fill: var(--deny); font-size: 12px; }
.denied { fill: none; stroke: var(--deny); stroke-width: 1.5; stroke-dasharray: 4 3; }
.ask { fill: var(--ask); }
.changed { fill: var(--changed); }
.allow { fill: var(--allow); }
"""
NAMES = sorted(set(re.findall(r"var\((--[\w-]+)\)", RULES)))


def style() -> str:
    """The rules with the colours of both themes."""
    text = TOKENS.read_text(encoding="utf-8")
    pairs = dict(re.findall(r"(--[\w-]+): light-dark\(([^)]*)\)", text))
    light, dark = (" ".join(f"{name}: {pairs[name].split(', ')[at]};" for name in NAMES) for at in (0, 1))
    return f"<style>\nsvg {{ {light} }}\n@media (prefers-color-scheme: dark) {{ svg {{ {dark} }} }}{RULES}</style>"


class Drawing:
    """Shapes on a page that grows downwards."""

    def __init__(self, title: str, height: int) -> None:
        self._height = height
        self._title = title
        self._shapes: list[str] = []

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> None:
        self._shapes.append(f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>')

    def lines(self, x: float, y: float, words: Sequence[str], kind: str = "", anchor: str = "start") -> None:
        for number, line in enumerate(words):
            self.text(x, y + 17 * number, line, kind, anchor)

    def box(self, x: float, y: float, width: float, height: float, kind: str = "box") -> None:
        self._shapes.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5"/>')

    def label(self, x: float, y: float, width: float, words: str, kind: str = "box", inside: str = "code") -> None:
        """A box of one line with its words in the middle."""
        self.box(x, y, width, 30, kind)
        self.text(x + width / 2, y + 19.5, words, inside, "middle")

    def path(self, path: str, kind: str = "line") -> None:
        self._shapes.append(f'<path class="{kind}" d="{path}"/>')

    def arrow(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """A straight arrow, to the right or down."""
        self.path(f"M{x1:g} {y1:g}L{x2:g} {y2:g}")
        tip = f"M{x2 - 6:g} {y2 - 4:g}L{x2:g} {y2:g}L{x2 - 6:g} {y2 + 4:g}"
        self.path(tip if y1 == y2 else f"M{x2 - 4:g} {y2 - 6:g}L{x2:g} {y2:g}L{x2 + 4:g} {y2 - 6:g}")

    def dot(self, x: float, y: float, kind: str, radius: float = 5) -> None:
        self._shapes.append(f'<circle class="{kind}" cx="{x:g}" cy="{y:g}" r="{radius:g}"/>')

    def svg(self) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self._height}" width="{WIDTH}" '
            f'height="{self._height}" role="img" aria-label="{escape(self._title)}">'
        )
        return "\n".join([head, style(), *self._shapes, "</svg>"]) + "\n"


# ---------------------------------------------------------------- the lifecycle

ORDER = [
    ("SessionStarting", 0, "once per session"),
    ("TurnStarting", 1, "a message from the user"),
    ("StepStarting", 2, ""),
    ("Compacting", 3, "if the window is full"),
    ("ModelCalling", 3, ""),
    ("the model", 4, "wrap, transform"),
    ("ModelReplying", 3, ""),
    ("ToolCalling", 3, "all calls of the step"),
    ("Delegating", 3, "a call of another agent"),
    ("the tools", 4, "wrap"),
    ("ToolReturning", 3, ""),
    ("MessageAdding", 3, "each new message"),
    ("StepEnding", 2, ""),
    ("Continuing", 2, "more to do? then again"),
    ("Stopping", 1, "may the turn stop?"),
    ("TurnEnding", 1, "on every outcome"),
    ("Erring", 1, "at any error"),
    ("Resuming", 1, "after a pause or a crash"),
]
"""Each event with its depth. The two effects are not events."""


def lifecycle() -> str:
    row, top, column = 30, 52, {"rewrite": 452, "inject": 532, "gate": 612}
    drawing = Drawing("The lifecycle: events in order, and what hooks may do at each", top + row * len(ORDER) + 12)
    events = {event.__name__: event for event in EVENTS}
    for verb, x in column.items():
        drawing.text(x, 26, verb, "strong", "middle")
    drawing.path(f"M16 38H{WIDTH - 16}")
    places = [(40 + 34 * depth, top + row * number + 10) for number, (_, depth, _) in enumerate(ORDER)]
    turns = [f"M{places[0][0]} {places[0][1]}"]
    for (x1, y1), (x2, y2) in pairwise(places[:16]):
        middle = (y1 + y2) / 2
        turns.append(f"L{x1} {y1}C{x1} {middle} {x2} {middle} {x2} {y2}")
    drawing.path("".join(turns), "rail")
    first, last = places[2], places[13]
    drawing.path(
        f"M{last[0] - 6} {last[1]}C{last[0] - 50} {last[1]} {first[0] - 50} {first[1]} {first[0] - 8} {first[1]}"
    )
    drawing.path(f"M{first[0] - 15} {first[1] - 5}L{first[0] - 8} {first[1]}L{first[0] - 15} {first[1] + 4}")
    for (name, _, note), (x, y) in zip(ORDER, places, strict=True):
        event = events.get(name)
        if event is None:
            drawing.box(x - 7, y - 7, 14, 14, "spent" if "model" in name else "tool")
            drawing.text(x + 16, y + 4.5, name, "strong")
        else:
            drawing.dot(x, y, "spent")
            drawing.text(x + 16, y + 4.5, name, "code")
        drawing.text(x + (100 if event is None else 30 + 8 * len(name)), y + 4.5, note, "quiet")
        if event is None:
            continue
        can = {"rewrite": bool(event.payload), "inject": bool(event.injects), "gate": bool(event.ranks)}
        for verb, kind in (("rewrite", "changed"), ("inject", "changed"), ("gate", "ask")):
            if can[verb]:
                drawing.dot(column[verb], y, kind, 4)
    missing = set(events) - {name for name, _, _ in ORDER} - {"SubagentStopping"}
    if missing:
        raise ValueError(f"the diagram of the lifecycle lacks {', '.join(sorted(missing))}")
    return drawing.svg()


# ---------------------------------------------------------------- six verbs


def verbs() -> str:
    """What a call passes, from top to bottom, and what a failure means there."""
    rows = [
        ("rewrite", "changes the arguments, the request, the result", "it fails: the action fails", "changed"),
        ("gate", "decides: allow, deny, ask, answer, halt", "it fails: refused", "ask"),
        ("inject", "adds context: for this turn, or for good", "it fails: the turn fails and names it", "changed"),
        ("wrap", "surrounds the effect: retry, cache, time out", "it fails: like an error of the effect", "spent"),
        ("transform", "changes the text while it streams", "it fails: held text is never shown", "changed"),
        ("observe", "looks at facts, beside the turn", "it fails: noted; the turn goes on", "tool"),
    ]
    drawing = Drawing("Six verbs: what each may do, and what its failure means", 62 * len(rows) + 24)
    drawing.path(f"M34 20V{62 * 5 - 6}", "rail")
    for number, (verb, power, failure, kind) in enumerate(rows):
        y = 16 + 62 * number
        drawing.box(64, y, WIDTH - 80, 50)
        drawing.dot(34, y + 25, kind, 7)
        drawing.text(80, y + 30, verb, "strong")
        drawing.text(170, y + 22, power)
        drawing.text(170, y + 40, failure, "deny")
        if verb == "wrap":
            drawing.label(548, y + 10, 100, "the effect", "spent", "on strong")
    return drawing.svg()


# ---------------------------------------------------------------- the chain of a call


def chain() -> str:
    drawing = Drawing("The chain of a tool call, and what a crash means at each link", 218)
    links = [
        ("proposed", "ModelReplied", ["decided again;", "the model is not", "called again"]),
        ("decided", "ToolDecided", ["gates are asked", "again: the stricter", "answer counts"]),
        ("started", "ToolCalled", ["pure, idempotent:", "runs again; unsafe:", "outcome unknown"]),
        ("returned", "ToolReturned", ["the recorded result", "is used"]),
    ]
    step = WIDTH / len(links)
    for number, (word, record, crash) in enumerate(links):
        x = 14 + step * number
        drawing.text(x + 70, 24, word, "strong", "middle")
        drawing.label(x, 36, 140, record)
        if number:
            drawing.arrow(x - step + 142, 51, x - 3, 51)
        drawing.path(f"M{x + 70} 70V112", "denied")
        drawing.lines(x + 70, 152, crash, "quiet", "middle")
        drawing.text(x + 70, 130, "killed after this", "deny", "middle")
    return drawing.svg()


# ---------------------------------------------------------------- log, fold, resume


def log() -> str:
    drawing = Drawing("One log: a killed turn continues in another process from what was recorded", 250)
    drawing.text(16, 30, "process 1", "strong")
    drawing.text(WIDTH - 16, 30, "process 2, after kill -9", "strong", "end")
    records = ["TurnStarted", "ModelReplied", "ToolReturned", "Resumed", "ModelReplied", "TurnEnded"]
    step = (WIDTH - 32) / len(records)
    for number, record in enumerate(records):
        x = 16 + step * number
        drawing.label(x, 96, step - 8, record)
        drawing.text(x + (step - 8) / 2, 144, str(number + 1), "quiet", "middle")
        if number == 3:
            drawing.path(f"M{x - 4} 46V158", "denied")
        drawing.arrow(x + (step - 8) / 2, 44, x + (step - 8) / 2, 92)
    drawing.text(16 + step * 3 - 12, 62, "killed", "deny", "end")
    drawing.text(76, 180, "the log: append-only, hashed in a chain", "quiet")
    drawing.path(f"M16 152V160H{WIDTH - 24}V152")
    drawing.label(120, 200, 180, "fold(records) → state", "sunk")
    drawing.path("M60 160V215H116")
    drawing.path("M110 211L116 215L110 219")
    drawing.path(f"M302 215H{16 + step * 3 + 46:g}V164")
    drawing.text(16 + step * 3 + 58, 206, "it reads the log, knows the", "quiet")
    drawing.text(16 + step * 3 + 58, 222, "state, and goes on from there", "quiet")
    return drawing.svg()


# ---------------------------------------------------------------- bands


def bands() -> str:
    drawing = Drawing("Bands: the guard band is nearest to the effect", 262)
    names = [
        ("early", "by priority, then in the order of registration"),
        ("normal", "the default"),
        ("guard", "only the application"),
    ]
    for number, (name, note) in enumerate(names):
        inset = 58 * number
        drawing.box(
            16 + inset, 16 + 40 * number, WIDTH - 32 - 2 * inset, 214 - 62 * number, "sunk" if number == 2 else "box"
        )
        drawing.text(30 + inset, 38 + 40 * number, name, "strong")
        drawing.text(92 + inset, 38 + 40 * number, note, "quiet")
    drawing.label(264, 144, 152, "model or tool", "spent", "on strong")
    drawing.path("M22 160H256", "rail")
    drawing.path("M249 155L257 160L249 165", "rail")
    drawing.path("M420 160H658", "rail")
    drawing.path("M651 155L659 160L651 165", "rail")
    drawing.text(
        WIDTH / 2, 252, "In: the guard band sees what really leaves. Out: wraps unwind in reverse.", "quiet", "middle"
    )
    return drawing.svg()


# ---------------------------------------------------------------- sub-agents


def subagents() -> str:
    drawing = Drawing("A sub-agent: a session of its own, under the guards of those above", 262)
    drawing.box(16, 16, WIDTH - 32, 72)
    drawing.text(32, 42, "lead", "strong")
    drawing.text(74, 42, "session s1", "code")
    drawing.text(32, 68, "its guards, its budget, one log", "quiet")
    drawing.label(430, 36, 210, "call: research(task=…)")
    drawing.arrow(535, 68, 535, 144)
    drawing.text(525, 112, "Delegating: gates decide", "quiet", "end")
    drawing.box(196, 148, WIDTH - 212, 98)
    drawing.text(212, 174, "research", "strong")
    drawing.text(280, 174, "session s1//1/1", "code")
    drawing.text(212, 200, "its own hooks and tools, its own log", "quiet")
    drawing.text(212, 224, "around them, the guards of lead: they have the last word", "strong")
    drawing.path("M192 196H150V94")
    drawing.path("M146 100L150 94L154 100")
    drawing.lines(140, 126, ["result, cost,", "open questions"], "quiet", "end")
    return drawing.svg()


PAGES: dict[str, Callable[[], str]] = {
    f"{FOLDER}/{make.__name__}.svg": make for make in (lifecycle, verbs, chain, log, bands, subagents)
}
