"""The words for rows of a score and for how a turn stands, as the terminal prints them and the page shows them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from .score import TONES
from .words import Data

STATES = {
    "live": "live", "running": "running", "interrupted": "interrupted", "waiting": "waiting for a person",
    "done": "completed", "stopped": "stopped", "failed": "failed", "cancelled": "cancelled",
}  # fmt: skip
"""How a session or a turn stands."""

ENDS = {
    "done": "Completed", "stopped": "Stopped", "failed": "Failed", "cancelled": "Cancelled", "waiting": "Suspended",
    "interrupted": "Interrupted",
}  # fmt: skip
"""The last row of a turn."""

COUNTS = {"deny": "refused", "ask": "asked", "changed": "changed", "error": "errors"}
"""What the counted verdicts of a session are called."""


class Chip(NamedTuple):
    """Who decided or changed something at a row, and why. `tone` is that of the verdict, or `shadow`."""

    tone: str
    text: str
    why: str = ""


class Phrase(NamedTuple):
    """A row in words: who did what. `mark` is the shape beside it; `struck` says that the text does not count."""

    who: str
    note: str = ""
    mark: str = ""
    text: str = ""
    struck: bool = False


def tone(verdict: str) -> str:
    """What a verdict counts as; `silent` for one that decides nothing."""
    return TONES.get(verdict, "silent")


def state_of(turn: Data, live: bool) -> str:
    """How a turn stands: one that runs although no process works on it was interrupted."""
    return str(turn["state"]) if turn["state"] != "running" else "live" if live else "interrupted"


def because(turn: Data, state: str) -> str:
    """Why a turn stands as it does, after the word for it."""
    if state == "live":
        calls = [row for row in turn["rows"] if row.get("called") and not row.get("status")]
        return f"{calls[-1]['name']} was called" if calls else "the model was asked"
    if state == "interrupted":
        return "its process ended; it can be resumed"
    return f"because {turn['detail']}" if state == "done" else str(turn["detail"])


def phrase(row: Data, state: str) -> Phrase:
    """A row in words, in a turn that stands as `state` says."""
    describe = _PHRASES.get(row["k"])
    if describe is not None:
        return describe(row, state)
    return Phrase(row.get("by") or "note", str(row.get("what", row["k"])), text=str(row.get("text", "")))


def chips(row: Data) -> Iterator[Chip]:
    """Who decided or changed something at a row, if it was more than to allow it."""
    for one in row.get("changes", ()):
        yield Chip("changed", one["hook"])
    for one in row.get("says", ()):
        if one["shadow"] or one["v"] != "Allow":
            only = ", recorded only" if one["shadow"] else ""
            yield Chip("shadow" if one["shadow"] else tone(one["v"]), f"{one['hook']}: {one['v']}{only}", one["why"])
    if rejected := row.get("rejected"):
        yield Chip("deny", f"{', '.join(rejected['by'])}: rejected", rejected["why"])
    if passed := row.get("passed"):
        yield Chip("ask", f"{', '.join(passed['by'])}: let it pass", passed["why"])
    for one in row.get("answered", ()):
        yield Chip(tone(one["v"]), f"{one['by']}: {one['v']}", one["why"])
    for one in row.get("discarded", ()):
        yield Chip("error", f"attempt {one['attempt']} discarded", one["error"] or "")


# ---------------------------------------------------------------- one phrase per kind of row


def _user(row: Data, state: str) -> Phrase:
    return Phrase("user", "withheld by a hook" if row.get("withheld") else "", text=row["text"] or "no text")


def _message(row: Data, state: str) -> Phrase:
    held = ", for after this step" if row.get("held") else ""
    return Phrase(row.get("by") or row["role"], f"added a message{held}", text=row["text"])


def _inject(row: Data, state: str) -> Phrase:
    if row["missing"]:
        note = f"injected something that is {'pruned' if row['missing'] == 'pruned' else 'not in the log'}"
    else:
        note = "injected, stays in the transcript" if row["durable"] else "injected, this turn only"
    return Phrase(row["by"], note, "inject", row["text"])


def _model(row: Data, state: str) -> Phrase:
    cached = f" ({row['cached'] / row['in']:.0%} cached)" if row.get("cached") and row["in"] else ""
    parts = [span(row["t"] - row["t0"]), f"{count(row['in'])} in{cached}", f"{count(row['out'])} out"]
    parts += [money(row["cost"])] if row["cost"] is not None else []
    parts += [] if row["paid"] else ["no model was called"]
    parts += [f"round {row['round']}"] if row["round"] > 1 else []
    parts += [f"attempt {row['attempt']}"] if row["attempt"] > 1 else []
    vendor = [f"the vendor ran {_vendor_part(one)}: not mediated, no gate saw it" for one in row["opaque"]]
    text = "; ".join([part for part in (row["text"], *vendor) if part])
    return Phrase("model", ", ".join(parts), "error" if vendor else "", text, bool(row.get("rejected")))


def _vendor_part(part: Data) -> str:
    data = part.get("data")
    return str(data.get("type", part.get("vendor", "a tool")) if isinstance(data, dict) else part.get("vendor"))


def _attempt(row: Data, state: str) -> Phrase:
    text = f"{row['error']}: {row['text']}" if row["error"] else row["text"]
    return Phrase("model", f"attempt {row['attempt']} was discarded", "error", text)


def _tool(row: Data, state: str) -> Phrase:
    tags = [f"agent {row['agent']}"] if row.get("child") else []
    tags += ["undone"] if row.get("undo") else []
    tags += [f"attempt {row['attempts']}"] if row.get("attempts", 1) > 1 else []
    tags += [span(row["t"] - row["t0"])] if row["called"] and row["status"] else []
    charged = row.get("charged")
    tags += [money(charged["cost"])] if charged is not None and charged["cost"] is not None else []
    note = " ".join([values_in_one_line(row.get("final") or row["json"]), *([f"[{', '.join(tags)}]"] if tags else [])])
    mark = {"denied": "deny", "error": "error", "interrupted": "interrupted", "cancelled": "cancelled"}
    return Phrase(row["name"], note.strip(), mark.get(row["status"], ""), _result(row, state))


def _result(row: Data, state: str) -> str:
    status = row["status"]
    if status == "not made":
        return "not made: the reply was rejected"
    if row.get("result"):
        text = str(row["result"])
        said = status == "ok" or text.lower().startswith(status)
        return text if said else f"{status}: {text}"
    if status:
        return "no text" if status == "ok" else str(status)
    if row["called"]:
        return "running" if state == "live" else "started, no result in the log"
    return "waits for an answer" if row.get("asked") and not row.get("answered") else "not called yet"


def _delegate(row: Data, state: str) -> Phrase:
    background = ", in the background" if row["background"] else ""
    return Phrase(row["by"], f"gave agent {row['agent']} a task{background}", text=row["task"])


def _wait(row: Data, state: str) -> Phrase:
    who = "waits for a person" if row["open"] else "waited for a person"
    note = "no process needed" if row["open"] else f"{span(row['t'] - row['t0'])}, no process needed"
    answers = [f"{one['by']}: {one['v'].lower()}{_after(one['why'])}" for one in row["answers"]]
    text = "; ".join([*[ask["question"] for ask in row["asks"]], *answers])
    return Phrase(who, note, "ask", text)


def _after(why: str) -> str:
    return f", {why}" if why else ""


def _veto(row: Data, state: str) -> Phrase:
    return Phrase(row["by"], f"vetoed the stop ({row['reason'].replace('_', ' ')})", "deny", row["text"])


def _rewind(row: Data, state: str) -> Phrase:
    return Phrase(row["by"], row["text"], "deny")


def _compact(row: Data, state: str) -> Phrase:
    note = f"compacted messages {row['range'][0]} to {row['range'][1] - 1}{_after(row['reason'])}"
    text = f"{count(row['before'])} tokens before, {count(row['after'])} after; the log keeps all of them"
    return Phrase(row["by"], note, "changed", text)


def _error(row: Data, state: str) -> Phrase:
    if row.get("hook"):
        text = f"{row['error']}: {row['text']}"
        return Phrase(row["by"], f"failed at {row['event']}: {row['action']}", "error", text)
    return Phrase(row["error"], f"{row['action']}, by {row['by']}", "error", row["text"])


def _side(row: Data, state: str) -> Phrase:
    note = ", ".join([part for part in (row["by"], "" if row["cost"] is None else money(row["cost"])) if part])
    return Phrase("side call", note, text=row["text"])


def _resumed(row: Data, state: str) -> Phrase:
    if row["drift"]:
        return Phrase("resumed with other hooks or tools", "", "ask", row["text"])
    return Phrase("the process ended", "another one continued from the log", "error", row["text"])


def _cancel(row: Data, state: str) -> Phrase:
    return Phrase("a cancel was requested", "", "cancelled", row["text"])


_PHRASES = {
    "user": _user, "message": _message, "inject": _inject, "model": _model, "attempt": _attempt, "tool": _tool,
    "delegate": _delegate, "wait": _wait, "veto": _veto, "rewind": _rewind, "compact": _compact, "error": _error,
    "side": _side, "resumed": _resumed, "cancel": _cancel,
}  # fmt: skip


# ---------------------------------------------------------------- numbers and times


def money(usd: float | None) -> str:
    """An amount of money as people read it."""
    if usd is None:
        return "–"
    return f"${usd:.2f}" if usd >= 1 else f"${usd:.3f}" if usd >= 0.1 else "$0" if usd == 0 else f"${usd:.4f}"


def count(number: int) -> str:
    """A number of tokens as people read it."""
    if number >= 1_000_000:
        return f"{number / 1_000_000:.2f}M"
    return (
        f"{number / 1000:.0f}k" if number >= 100_000 else f"{number / 1000:.1f}k" if number >= 10_000 else f"{number:,}"
    )


def span(seconds: float) -> str:
    """A length of time as people read it."""
    for limit, factor, unit, digits in (
        (0.001, 1e6, "µs", 0),
        (0.01, 1e3, "ms", 1),
        (1, 1e3, "ms", 0),
        (60, 1, "s", 1),
    ):
        if seconds < limit:
            return f"{seconds * factor:.{digits}f} {unit}" if seconds > 0 else "0 s"
    if seconds < 3600:
        return f"{int(seconds // 60)} m {int(seconds % 60):02} s"
    if seconds < 48 * 3600:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02} m"
    return f"{int(seconds // 86400)} days"


_SHORT_TIMES = ((0.001, 1e6, "µs", 0), (0.01, 1e3, "ms", 1), (1, 1e3, "ms", 0), (60, 1, "s", 1))


def offset(seconds: float) -> str:
    """A place on the axis of time: seconds since the turn began."""
    if seconds < 0.0005:
        return "0"
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    if seconds < 60:
        return f"{round(seconds, 1):g} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02} h"


def values_in_one_line(text: str) -> str:
    """The arguments of a call without their names; a text that is not a JSON object stays as it is."""
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(found, dict):
        return text
    values: list[Any] = [*found.values()]
    return ", ".join([one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in values])
