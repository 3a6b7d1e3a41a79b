"""A turn as a person sees it on a terminal: whole lines that stay, the line that still grows, and a line of status.

The same view serves `run` and `chat`. It prints nothing itself: it gives whole lines to a function, and the screen
asks for `partial` and `status` when it draws.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from rich.cells import cell_len, chop_cells
from rich.text import Text

from windlass import records as r
from windlass._text import one_line, printable, visible
from windlass.decisions import Allow, Answer, AnyDecision, Ask, Deny, Halt
from windlass.deltas import ArgumentsDelta, StreamEvent, TextDelta, ThinkingDelta
from windlass.events import ModelCalled, Progressed, Retracted
from windlass.messages import Usage

from .json_lines import verdict_name

LONGEST_RESULT = 200
"""How many characters of a tool's result a person sees; `windlass show` has all."""


class TurnView:
    """Takes the events of a turn. `write` prints one whole line; `width` says how wide the terminal is now."""

    def __init__(self, write: Callable[[Text], None], width: Callable[[], int]) -> None:
        self.write = write
        self.width = width
        self.partial = ""
        """The line of the answer that is not complete yet, inert."""
        self.doing = "starts"
        self.decided = ""
        self.usage = Usage(requests=0)
        self.streamed = 0

    @property
    def status(self) -> str:
        """What happens now, which hook decided last, and what was spent: one line, inert."""
        parts = [self.doing, self.decided, spent(self.usage)]
        return " · ".join([part for part in parts if part])

    def show(self, event: StreamEvent) -> None:
        """Take one event of the stream."""
        match event:
            case TextDelta(text=text, path="", step=step):
                self.doing, self.streamed = "writes", step
                self._say(text)
            case ThinkingDelta() | ArgumentsDelta():
                self.doing = "thinks" if isinstance(event, ThinkingDelta) else f"prepares {visible(event.name)}"
            case ModelCalled():
                self.doing = "waits for the model"
            case Progressed(by=by, done=done, total=total, text=text):
                of = "" if total is None else f" of {total:g}"
                self.doing = printable(f"{by}: {done:g}{of} {text}")
            case _:
                self._show_fact(event)

    def close(self) -> None:
        """Print the line that is not complete: the turn is over or waits."""
        if self.partial:
            self.write(Text(self.partial))
            self.partial = ""

    # ------------------------------------------------------------ the answer

    def _say(self, text: str) -> None:
        """Add text of the answer. Complete lines are printed; long ones are wrapped between words."""
        *lines, last = (self.partial + _inert_words(text)).split("\n")
        for line in lines:
            self._wrap(line, whole=True)
        self.partial = self._wrap(last, whole=False)

    def _wrap(self, line: str, *, whole: bool) -> str:
        """Print what fills lines. Without `whole`, return the rest, which still grows."""
        *full, last = wrapped(line, self.width())
        for one in [*full, last] if whole else full:
            self.write(Text(one))
        return last

    # ------------------------------------------------------------ facts

    def _show_fact(self, fact: StreamEvent) -> None:
        match fact:
            case r.ModelReplied(reply=reply, step=step):
                self.usage += reply.usage
                if not fact.path and self.streamed != step and reply.text:  # its text was held back or not streamed
                    self._say(reply.text)
                for call in reply.tool_calls:
                    self._line(fact, "→ ", f"{call.name} {arguments_text(call.json)}", "cyan")
                    self.doing = f"runs {visible(call.name)}"
            case r.ToolDecided(verdict=verdict, answers=answers):
                self._decide("", verdict, answers, fact)
            case r.HookDecided(event=event, verdict=verdict, answers=answers, shadow=False):
                self._decide(event, verdict, answers, fact)
            case r.ToolReturned(name=name, result=result):
                shown = one_line(result.text, LONGEST_RESULT) or "(no text)"
                said = result.status == "ok" or shown.lower().startswith(result.status)
                what = "" if said else f"{result.status}: "
                self._line(fact, "  ← ", f"{name}: {what}{shown}", "green" if result.status == "ok" else "red")
                self.doing = "continues"
            case r.MessageAdded(message=message, by=by) if message is not None and message.role == "user":
                self._line(fact, "+ ", f"{by or 'you'}: {message.text}", "magenta")
            case Retracted(reason=reason):
                self.partial = ""
                self._line(fact, "", f"(the text above is taken back: {reason})", "dim")
            case r.HookFailed(hook=hook, error=error):
                self._line(fact, "! ", f"{hook} failed: {error.type}: {error.message}", "red")
            case r.Compacted(before=before, after=after, by=by):
                self._line(fact, "", f"({by}: {before:,} → {after:,} tokens)", "dim")
            case _:
                pass

    def _decide(self, event: str, verdict: Any, answers: Any, fact: StreamEvent) -> None:
        """Note who decided, and print what was not simply allowed."""
        if not answers:
            return
        by = ", ".join([name for name, _ in answers])
        at = f" ({event})" if event else ""
        self.decided = printable(f"{by}: {verdict_name(verdict)}{at}")
        if isinstance(verdict, AnyDecision) and not isinstance(verdict, Allow | Ask):
            reason = getattr(verdict, "reason", "")
            style = "red" if isinstance(verdict, Deny | Halt) else "yellow" if isinstance(verdict, Answer) else "dim"
            self._line(fact, "  ", f"{by}: {verdict_name(verdict)}{at} {reason}", style)

    def _line(self, fact: StreamEvent, mark: str, text: str, style: str) -> None:
        """Print a line about a fact; that of a sub-agent is indented."""
        self.close()
        indent = "    " if fact.path else ""
        hanging = indent + " " * (len(mark) + 2)
        for line in wrapped(f"{indent}{mark}{printable(text)}", self.width(), hanging):
            self.write(Text(line, style=style))


def wrapped(line: str, width: int, hanging: str = "") -> list[str]:
    """A line as lines that fit a terminal, broken between words if they are not too long."""
    room = max(width - 1, 20)
    hanging = hanging[: room // 2]
    lines: list[str] = []
    at, lead = 0, ""
    while True:
        space = room - len(lead)
        window = line[at : at + 4 * space]  # so that a long line takes no longer than its length
        first = chop_cells(window, space)[0] if cell_len(window) > space else window
        end = at + len(first)
        if end >= len(line):
            return [*lines, lead + first]
        cut = len(first) if line[end] == " " else first.rfind(" ")
        cut = cut if cut > len(first) - len(first.lstrip(" ")) else len(first)
        lines.append(lead + line[at : at + cut])
        at += cut + (line[at + cut] == " ")
        lead = hanging


def _inert_words(text: str) -> str:
    return "\n".join([visible(line) for line in text.replace("\r\n", "\n").expandtabs().split("\n")])


def arguments_text(text: str) -> str:
    """The arguments of a call in one line: `path="a.txt"` for an object, the text itself otherwise."""
    try:
        found = json.loads(text)
    except ValueError:
        return text
    if not isinstance(found, dict):
        return text
    pairs = [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in found.items()]
    return one_line(" ".join(pairs), 400)


def spent(usage: Usage) -> str:
    """Tokens and money in a few words."""
    if not usage.requests:
        return ""
    cost = "" if usage.cost is None else f", ${usage.cost:.4f}"
    return f"{usage.total:,} tokens{cost}"
