"""Recorded sessions as the JSON that other tools read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from windlass.capabilities.span_content import finish_reason, message_json
from windlass.messages import Message, ModelReply, Usage, thawed
from windlass.records import ModelReplied, Record, SessionOpened, TurnEnded, TurnStarted
from windlass.states import Fold

from . import inspect_ai, openai
from .parts import Ids

Json = dict[str, Any]
EvalForm = Literal["openai", "inspect"]

_NANOSECONDS = 1_000_000_000


def otel_events(session: str, records: Sequence[Record]) -> list[Json]:
    """A session as events of OpenTelemetry's GenAI conventions, one for each reply of a model.

    Each is a `gen_ai.client.inference.operation.details` with a `timestamp` in nanoseconds and `attributes`; messages
    in it are JSON values. The input is the transcript at that time, without what hooks injected.
    """
    events: list[Json] = []
    agent = system = ""
    for fold, record in _told(session, records):
        if isinstance(record, SessionOpened):
            agent = record.agent or agent
            system = record.system if record.system is not None else system
        if isinstance(record, ModelReplied):
            before = [_otel_message(message) for message in fold.state.messages]
            attributes = {
                "gen_ai.operation.name": "chat",
                "gen_ai.conversation.id": session,
                "gen_ai.agent.name": agent,
                "gen_ai.system_instructions": [{"type": "text", "content": system}] if system else None,
                "gen_ai.input.messages": before,
                **_replied(record.reply),
            }
            events.append(
                {
                    "name": "gen_ai.client.inference.operation.details",
                    "timestamp": round(record.at * _NANOSECONDS),
                    "attributes": {key: value for key, value in attributes.items() if value not in ("", None)},
                }
            )
    return events


def eval_lines(session: str, records: Sequence[Record], *, form: EvalForm = "openai") -> list[Json]:
    """A session as one line for each turn that has ended, with messages as OpenAI writes them.

    `input` is the conversation up to the user's message, `output` the answer, `messages` what came between. With
    `form="inspect"` the lines are samples of Inspect, for its `json_dataset`: `target` is the answer, and the rest is
    `metadata`.
    """
    add = inspect_ai.add if form == "inspect" else openai.add
    lines: list[Json] = []
    ref = ""
    for fold, record in _told(session, records, after=True):
        if isinstance(record, TurnStarted):
            ref = record.ref
        turn = fold.state.turn
        if not isinstance(record, TurnEnded) or turn is None:
            continue
        messages = list(fold.state.messages)
        ids, start = Ids(messages), turn.start + 1
        line: Json = {
            "id": ref,
            "session": session,
            "input": [],
            "output": _answer(record, messages[start:]),
            "messages": [],
        }
        for message in messages[:start]:
            add(line["input"], message, ids)
        for message in messages[start:]:
            add(line["messages"], message, ids)
        outcome = type(record.outcome).__name__.lower()
        line |= {"outcome": outcome, "usage": _usage(turn.usage)}
        lines.append(_sample(line) if form == "inspect" else line)
    return lines


def _sample(line: Json) -> Json:
    """A line as a sample of Inspect."""
    about = {name: line[name] for name in ("session", "messages", "outcome", "usage")}
    return {"id": line["id"], "input": line["input"], "target": line["output"], "metadata": about}


def case_of_session(session: str, records: Sequence[Record]) -> Json:
    """A session as a case for `windlass eval`: the same messages are sent to an agent again."""
    texts = [record.message.text for record in records if isinstance(record, TurnStarted)]
    case: Json = {"name": session, "input": texts[0] if texts else ""}
    return {**case, "follow_ups": texts[1:]} if texts[1:] else case


def _told(session: str, records: Sequence[Record], after: bool = False) -> Iterator[tuple[Fold, Record]]:
    """Each record with the session as it was before, or as it is after it."""
    fold = Fold(session)
    for record in records:
        if after:
            fold.add(record)
        yield fold, record
        if not after:
            fold.add(record)


def _replied(reply: ModelReply) -> Json:
    said = {**_otel_message(reply.message), "finish_reason": finish_reason(reply)}
    return {
        "gen_ai.output.messages": [said],
        "gen_ai.response.model": reply.model,
        "gen_ai.response.id": reply.response_id,
        "gen_ai.response.finish_reasons": [reply.finish],
        "gen_ai.usage.input_tokens": reply.usage.input,
        "gen_ai.usage.output_tokens": reply.usage.output,
        "gen_ai.usage.cache_read.input_tokens": reply.usage.cached or None,
        "gen_ai.usage.cache_creation.input_tokens": reply.usage.cache_written or None,
    }


def _answer(ended: TurnEnded, messages: list[Message]) -> str:
    """What the caller got: the text that the record has, or else the last thing that the model said."""
    if ended.text is not None:
        return ended.text
    return messages[-1].text if messages and messages[-1].role == "assistant" else ""


def _usage(usage: Usage) -> Json:
    return {"input": usage.input, "output": usage.output, "requests": usage.requests, "usd": usage.cost}


def _otel_message(message: Message) -> Json:
    return thawed(message_json(message))  # type: ignore[no-any-return]
