"""Records: all of them survive JSON, and an older reader survives what a newer version wrote."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass import Message, OpaquePart, TextPart, ToolResult, fold, user
from windlass.decisions import AnyDecision, AnyResolution, Deny
from windlass.errors import StoreError
from windlass.outcomes import Cancelled, Completed, Failed, Stopped
from windlass.records import (
    KINDS,
    UPCASTERS,
    HookDecided,
    MessageAdded,
    ModelReplied,
    SessionEnded,
    SessionOpened,
    SlotSet,
    ToolDecided,
    ToolReturned,
    TurnEnded,
    TurnStarted,
    Unknown,
    decode,
    encode,
)
from windlass.testing.strategies import (
    decisions,
    keys,
    outcomes,
    plain_values,
    records,
    resolutions,
    texts,
    values_of,
)

Plain = dict[str, Any]


def plain(data: bytes) -> Any:
    return msgspec.json.decode(data)


# ---------------------------------------------------------------- the round trip


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind_of_record_survives_json(kind):
    @settings(max_examples=25)
    @given(values_of(kind))
    def survives(record):
        data = encode(record)
        assert decode(data) == record
        assert type(decode(data)) is kind
        assert encode(decode(data)) == data

    survives()


@given(decisions(), resolutions(), outcomes())
def test_every_decision_resolution_and_outcome_survives_json(decision, resolution, outcome):
    assert msgspec.json.decode(msgspec.json.encode(decision), type=AnyDecision) == decision
    assert msgspec.json.decode(msgspec.json.encode(resolution), type=AnyResolution) == resolution
    kinds = Completed | Stopped | Failed | Cancelled
    assert msgspec.json.decode(msgspec.json.encode(outcome), type=kinds) == outcome


def test_every_kind_is_known_by_its_name():
    assert {name: kind.__name__ for name, kind in KINDS.items()} == {name: name for name in KINDS}


def test_a_record_says_only_what_is_not_the_default():
    assert encode(SessionOpened()) == b'{"kind":"SessionOpened"}'
    assert encode(MessageAdded()) == b'{"kind":"MessageAdded"}'


# ---------------------------------------------------------------- what a newer version wrote

NEW = "new_"


def with_new_fields(value: Any, extra: Any) -> Any:
    """The same plain value with a field in every object that nobody knows."""
    if isinstance(value, list):
        return [with_new_fields(item, extra) for item in value]
    if isinstance(value, dict):
        return {**{key: with_new_fields(item, extra) for key, item in value.items()}, f"{NEW}{len(value)}": extra}
    return value


def without_new_fields(value: Any) -> Any:
    if isinstance(value, list):
        return [without_new_fields(item) for item in value]
    if isinstance(value, dict):
        return {key: without_new_fields(item) for key, item in value.items() if not key.startswith(NEW)}
    return value


@settings(max_examples=200)
@given(records(), plain_values)
def test_fields_that_nobody_knows_are_passed_over(record, extra):
    newer = msgspec.json.encode(with_new_fields(plain(encode(record)), extra))
    read = decode(newer)
    assert type(read) is type(record)
    assert without_new_fields(plain(encode(read))) == plain(encode(record))


tags = st.sampled_from(["hologram", "smell", "text.2", "", "Text"])
new_parts = st.builds(lambda tag, rest: {**rest, "type": tag}, tags, st.dictionaries(keys, plain_values, max_size=2))


def with_new_parts(value: Any, part: Plain, at: int) -> Any:
    """The same plain value with an unknown part in every message, tool result and injection."""
    if isinstance(value, list):
        return [with_new_parts(item, part, at) for item in value]
    if not isinstance(value, dict):
        return value
    made = {key: with_new_parts(item, part, at) for key, item in value.items()}
    for key in ("parts", "content"):
        if isinstance(made.get(key), list):
            made[key].insert(at % (len(made[key]) + 1), part)
    return made


def opaque_data(value: Any) -> list[Any]:
    """The data of all opaque parts of an unknown vendor in a plain value."""
    if isinstance(value, list):
        return [data for item in value for data in opaque_data(item)]
    if not isinstance(value, dict):
        return []
    mine = [value["data"]] if value.get("type") == "opaque" and value.get("vendor") == "unknown" else []
    return mine + [data for item in value.values() for data in opaque_data(item)]


@settings(max_examples=300)
@given(records(), new_parts, st.integers(0, 5))
def test_parts_of_an_unknown_type_become_opaque_wherever_they_are(record, part, at):
    before = plain(encode(record))
    newer = with_new_parts(before, part, at)
    read = decode(msgspec.json.encode(newer))
    assert type(read) is type(record)
    again = plain(encode(read))
    added = str(newer).count(str(part)) - str(before).count(str(part))
    assert opaque_data(again).count(part) >= (1 if added > 0 else 0)
    assert decode(encode(read)) == read


@given(new_parts)
def test_an_unknown_part_is_kept_whole_in_messages_and_in_results(part):
    data = msgspec.json.encode(
        {"kind": "MessageAdded", "message": {"role": "user", "parts": [{"type": "text", "text": "a"}, part]}}
    )
    assert decode(data) == MessageAdded(Message("user", (TextPart("a"), OpaquePart("unknown", part))))
    nested = {"type": "tool_result", "call_id": "c", "name": "t", "content": [part]}
    data = msgspec.json.encode({"kind": "MessageAdded", "message": {"role": "tool", "parts": [nested, part]}})
    read = decode(data)
    assert isinstance(read, MessageAdded)
    assert read.message is not None
    result, beside = read.message.parts
    assert result.content == (OpaquePart("unknown", part),)  # type: ignore[union-attr]
    assert beside == OpaquePart("unknown", part)
    data = msgspec.json.encode(
        {"kind": "ToolReturned", "call": "c", "name": "t", "result": {"content": [part], "status": "ok"}}
    )
    assert decode(data) == ToolReturned("c", "t", ToolResult((OpaquePart("unknown", part),)))


def test_what_a_vendor_or_a_slot_keeps_is_not_touched_because_an_unknown_part_stands_beside_it():
    theirs = {"content": [{"type": "weird"}], "parts": [{"x": 1}]}
    parts = [{"type": "opaque", "vendor": "v", "data": theirs}, {"type": "hologram"}]
    read = decode(msgspec.json.encode({"kind": "MessageAdded", "message": {"role": "user", "parts": parts}}))
    assert isinstance(read, MessageAdded)
    assert read.message is not None
    assert read.message.parts[0] == OpaquePart("v", theirs)
    slot = {"kind": "SlotSet", "slot": "s", "value": theirs, "by": "b"}
    assert decode(msgspec.json.encode(slot)) == SlotSet("s", theirs, "b")


unknown_kinds = texts.filter(lambda kind: kind not in KINDS and kind not in UPCASTERS)


@given(unknown_kinds, st.dictionaries(keys, plain_values, max_size=4))
def test_a_record_of_an_unknown_kind_is_kept_byte_for_byte(kind, fields):
    data = msgspec.json.encode({**fields, "kind": kind})
    read = decode(data)
    assert isinstance(read, Unknown)
    assert read.name == kind
    assert encode(read) == data
    assert encode(decode(encode(read))) == data


@pytest.mark.parametrize("data", [b"{}", b'{"kind":5}', b'{"kind":null,"a":1}'])
def test_a_record_without_a_proper_kind_is_kept_as_it_is(data):
    read = decode(data)
    assert isinstance(read, Unknown)
    assert encode(read) == data


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b'{"kind":"TurnStarted"}', "turn"),
        (b'{"kind":"TurnStarted","turn":1,"ref":"r","message":{"role":"user","parts":"hello"}}', "message.parts"),
        (b'{"kind":"ToolReturned","call":"c","name":"n","result":{"content":[{"type":"text","text":5}]}}', "text"),
        (b'{"kind":"Answered","id":"a","answer":{"answer":"Approve","by":5},"digest":"d"}', "by"),
    ],
)
def test_a_record_of_a_known_kind_that_cannot_be_read_is_an_error_that_names_it(data, what):
    kind = plain(data)["kind"]
    with pytest.raises(StoreError, match=rf"kind {kind} cannot be read.*{what}"):
        decode(data)


def test_a_value_that_json_does_not_have_is_never_written():
    with pytest.raises(TypeError, match="a record cannot hold a object"):
        encode(SlotSet("s", object()))


def with_new_tag(value: Any, field: str, tag: str) -> Any:
    if isinstance(value, list):
        return [with_new_tag(item, field, tag) for item in value]
    if not isinstance(value, dict):
        return value
    made = {key: with_new_tag(item, field, tag) for key, item in value.items()}
    return {**made, field: tag} if field in made else made


@settings(max_examples=300)
@given(
    records(), st.sampled_from(["decision", "answer", "outcome", "role", "status", "finish", "action", "how"]), texts
)
def test_an_unknown_word_in_a_known_record_is_an_error_or_nothing_of_it_is_lost(record, field, tag):
    newer = with_new_tag(plain(encode(record)), field, "Zz" + tag)
    try:
        read = decode(msgspec.json.encode(newer))
    except StoreError as error:
        assert f"kind {newer['kind']} cannot be read" in str(error)  # noqa: PT017
    else:
        assert plain(encode(read)) == newer


@given(values_of(HookDecided | ToolDecided), texts, plain_values)
def test_an_unknown_decision_is_an_error_that_names_the_record(record, tag, extra):
    newer = {**plain(encode(record)), "verdict": {"decision": "Zz" + tag, "x": extra}}
    with pytest.raises(StoreError, match=newer["kind"]):
        decode(msgspec.json.encode(newer))


LOG = [
    SessionOpened(),
    TurnStarted(1, user("hi"), "s/t1"),
    MessageAdded(),
    decode(
        b'{"kind":"ModelReplied","step":1,"reply":{"message":{"role":"assistant","parts":'
        b'[{"type":"tool_call","name":"add","id":"s/1/1"}],"id":"s/1"},"finish":"tool_calls"}}'
    ),
    ToolDecided("s/1/1", Deny("no")),
    ToolReturned("s/1/1", "add", ToolResult((TextPart("Denied: no"),), "denied")),
    decode(b'{"kind":"StepEnded","step":1}'),
    TurnEnded(Completed()),
    SessionEnded(),
]


@given(unknown_kinds, st.dictionaries(keys, plain_values, max_size=2), st.integers(0, len(LOG)))
def test_a_record_of_an_unknown_kind_changes_no_state(kind, fields, at):
    unknown = decode(msgspec.json.encode({**fields, "kind": kind}))
    with_it = fold("s", [*LOG[:at], unknown, *LOG[at:]])
    assert with_it.replace(seq=with_it.seq - 1) == fold("s", LOG)


def test_a_log_whose_reply_has_a_word_that_nobody_knows_can_still_be_folded():
    replied = LOG[3]
    assert isinstance(replied, ModelReplied)
    newer = plain(encode(replied))
    newer["reply"]["finish"] = "paused"
    log = [*LOG[:3], decode(msgspec.json.encode(newer)), *LOG[4:]]
    assert fold("s", log).ended


# ---------------------------------------------------------------- what an older version wrote


def test_an_older_record_is_brought_up_step_by_step(monkeypatch):
    monkeypatch.setitem(UPCASTERS, "Closed.1", lambda old: {"kind": "Closed.2", "when": old["time"]})
    monkeypatch.setitem(UPCASTERS, "Closed.2", lambda old: {"kind": "SessionEnded", "at": old["when"]})
    assert decode(b'{"kind":"Closed.1","time":3.5}') == SessionEnded(at=3.5)
    assert decode(b'{"kind":"Closed.2","when":4.5}') == SessionEnded(at=4.5)


def test_an_upcaster_that_leads_to_an_unknown_kind_gives_an_unknown_record(monkeypatch):
    monkeypatch.setitem(UPCASTERS, "Closed.1", lambda old: {"kind": "Later", "when": old["time"]})
    read = decode(b'{"kind":"Closed.1","time":3.5}')
    assert isinstance(read, Unknown)
    assert read.name == "Later"


def test_an_upcaster_is_not_asked_about_a_kind_that_is_known(monkeypatch):
    monkeypatch.setitem(UPCASTERS, "SessionEnded", lambda old: pytest.fail("it was asked"))
    assert decode(b'{"kind":"SessionEnded","at":1.0}') == SessionEnded(at=1.0)


# ---------------------------------------------------------------- extremes

lone = st.text(st.characters(categories=("Cs", "Ll", "Nd")), min_size=1, max_size=8)


@given(lone)
def test_lone_surrogates_survive_the_log(text):
    for record in (
        MessageAdded(user(text)),
        ToolReturned("s/1/1", "read", ToolResult((TextPart(text),))),
        HookDecided("ToolCalling", "s/1/1", Deny(text), (("gate", Deny(text)),)),
    ):
        assert decode(encode(record)) == record


def test_ten_megabytes_survive_the_log():
    record = MessageAdded(user("ö" * 5_000_000))
    assert decode(encode(record)) == record
