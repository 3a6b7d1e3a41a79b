"""Asks the person at the terminal what a gate wants to know: once, always, edit, no."""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Generator, Sequence
from typing import NamedTuple, TypeAlias

from windlass._text import visible, visible_id
from windlass.approvals import progress, subject_lines
from windlass.capabilities.permissions import SHELLS
from windlass.decisions import AnyResolution, Approve, Edit, Reject, Respond
from windlass.messages import ToolCall
from windlass.records import Asked


class Prompt(NamedTuple):
    """A line to ask for: what stands before it, the text that it begins with, and whether it is a choice of words."""

    text: str
    default: str = ""
    is_choice: bool = False


Answering: TypeAlias = Generator[Prompt, str, AnyResolution | None]
"""Yields prompts, is sent the lines that were typed, and returns the answer; None leaves the question open."""


def login() -> str | None:
    """The name of the person at this terminal."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return None


def question_lines(asked: Asked) -> list[str]:
    """What a person must read before the answer: the question and all of what it is about, inert."""
    lines = [f"{', '.join(map(visible_id, asked.by))} asks: {visible(asked.question)}"]
    lines += [f"  {line}" for line in subject_lines(asked)]
    if asked.terms:
        lines += [f"  {visible_id(need.gate)}: {need}" for need in progress(asked).needs]
    return lines


def may_answer(asked: Asked, by: str | None) -> bool:
    """Whether this person is one of those who may answer, and has not answered yet."""
    named = asked.approvers is None or by in asked.approvers
    return named and not any(answer.by == (by or "") for answer in asked.answers)


def answering(asked: Asked, by: str | None, *, remembers: bool) -> Answering:
    """Ask for the answer to a question. `remembers` says whether the agent keeps rules, so that `always` has a use."""
    words = _words(asked, remembers=remembers)
    problem = ""
    while True:
        shown = ", ".join([f"[{word[0]}]{word[1:]}" for word in words])
        typed = (yield Prompt(f"{problem}{shown}: ", is_choice=True)).strip()
        word, _, rest = typed.partition(" ")
        chosen = next((known for known in words if word and known.startswith(word.lower())), None)
        if chosen is None:
            problem = f"{visible(typed)} is not an answer. " if typed else ""
            continue
        if chosen == "later":
            return None
        try:
            answer = yield from _ANSWERS[chosen](asked, by, rest.strip())
        except ValueError as error:
            problem = f"{visible(str(error))}. "
            continue
        if answer is not None:
            return answer
        problem = ""


def _words(asked: Asked, *, remembers: bool) -> list[str]:
    allowed = {"yes": "approve", "always": "approve", "edit": "edit", "no": "reject", "respond": "respond"}
    words = [word for word, kind in allowed.items() if kind in asked.allow]
    if not remembers or asked.call is None or asked.terms:
        words = [word for word in words if word != "always"]
    return [*words, "later"]


def _approve(asked: Asked, by: str | None, rest: str) -> Answering:
    yield from ()
    return Approve(by, digest=asked.digest)


def _always(asked: Asked, by: str | None, rest: str) -> Answering:
    assert asked.call is not None
    rule = rest or (yield Prompt("rule to allow from now on (empty: go back): ", suggested_rule(asked.call))).strip()
    return Approve(by, remember=rule, digest=asked.digest) if rule else None


def _edit(asked: Asked, by: str | None, rest: str) -> Answering:
    before = "{}" if asked.call is None else asked.call.json
    typed = rest or (yield Prompt("arguments as JSON (empty: go back): ", before)).strip()
    if not typed:
        return None
    edited = json.loads(typed)
    if not isinstance(edited, dict):
        raise ValueError("the arguments must be a JSON object")
    return Edit(edited, by, asked.digest)


def _reject(asked: Asked, by: str | None, rest: str) -> Answering:
    return Reject(rest or (yield Prompt("reason, for the model (may be empty): ")).strip(), by, asked.digest)


def _respond(asked: Asked, by: str | None, rest: str) -> Answering:
    text = rest or (yield Prompt("text that the model gets instead of a result: ")).strip()
    return Respond(text, by, asked.digest) if text else None


_ANSWERS = {"yes": _approve, "always": _always, "edit": _edit, "no": _reject, "respond": _respond}


def suggested_rule(call: ToolCall) -> str:
    """A narrow rule that allows this call: this very command or path; for other tools, all calls of the tool.

    It is empty if the command or path has characters with a meaning in rules: then the person writes one.
    """
    shell = SHELLS.get(call.name)
    name, given = ("", call.arguments.get(shell)) if shell else ("path=", call.arguments.get("path"))
    if given is None:
        return call.name
    if not isinstance(given, str) or not given or set(given) & set("*?[](){}=,\\\n"):
        return ""
    return f"{call.name}({name}{given if shell else os.path.abspath(given)})"


def open_questions(waiting: Sequence[Asked], by: str | None) -> list[Asked]:
    """The questions that this person may answer, the most urgent first."""
    return sorted([asked for asked in waiting if may_answer(asked, by)], key=lambda asked: -asked.priority)
