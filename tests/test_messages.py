"""Messages: they survive JSON, `Messages` behaves like a list, and what is handed out cannot be changed."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass import Message, ToolCall, ToolCallPart, ToolResult, assistant, user
from windlass.errors import BadReply
from windlass.messages import (
    Messages,
    ModelReply,
    Part,
    TextPart,
    Usage,
    as_message,
    as_parts,
    as_reply,
    as_result,
    checked_messages,
    digest,
    render,
    text_result,
)
from windlass.records import MessageAdded, Rewound, TurnStarted
from windlass.states import Fold
from windlass.testing.strategies import messages, parts, plain_values, texts, values_of

short = st.lists(st.integers(0, 99).map(lambda n: user(str(n))), max_size=6)


# ---------------------------------------------------------------- JSON


@given(parts())
def test_every_part_survives_json(part):
    assert msgspec.json.decode(msgspec.json.encode(part), type=Part) == part


@given(messages())
def test_every_message_survives_json(message):
    assert msgspec.json.decode(msgspec.json.encode(message), type=Message) == message


@given(values_of(ModelReply | ToolResult | ToolCall | Usage))
def test_replies_results_calls_and_usage_survive_json(value):
    assert msgspec.json.decode(msgspec.json.encode(value), type=type(value)) == value


# ---------------------------------------------------------------- Messages is a list that shares its storage


def assert_same(view: Messages, expected: list[Message]) -> None:
    assert len(view) == len(expected)
    assert list(view) == expected
    assert view == expected
    assert view == tuple(expected)
    assert view == Messages(expected)
    assert list(reversed(view)) == expected[::-1]
    for index in range(-len(expected), len(expected)):
        assert view[index] == expected[index]
    for outside in (len(expected), -len(expected) - 1):
        with pytest.raises(IndexError):
            view[outside]
    assert (view != [*expected, user("more")]) is True
    assert all(message in view for message in expected)
    assert user("nowhere") not in view
    assert bool(view) is bool(expected)


@given(short, st.dictionaries(st.integers(0, 5), st.just(user("shown instead"))), short)
def test_a_view_with_overlay_and_tail_behaves_like_the_list_it_shows(items, overlay, tail):
    overlay = {index: message for index, message in overlay.items() if index < len(items)}
    expected = [overlay.get(index, message) for index, message in enumerate(items)] + tail
    assert_same(Messages(items, overlay=overlay, tail=tuple(tail)), expected)
    assert_same(Messages(items), items)


index = st.none() | st.integers(-9, 9)


@given(short, short, index, index, st.none() | st.integers(-3, 3).filter(bool))
def test_slices_are_those_of_a_list(items, tail, start, stop, step):
    view = Messages(items, tail=tuple(tail))
    assert view[start:stop:step] == [*items, *tail][start:stop:step]


@given(short, short)
def test_views_are_equal_if_and_only_if_their_messages_are(left, right):
    assert (Messages(left) == Messages(right)) is (left == right)
    assert (Messages(left[:1], tail=tuple(left[1:])) == Messages(left)) is True


def test_a_view_equals_no_stranger_and_has_no_hash():
    assert Messages() != "text"
    assert Messages() != 1
    with pytest.raises(TypeError):
        hash(Messages())


@given(short, st.dictionaries(st.integers(0, 5), st.just(user("shown instead"))), short)
def test_a_copy_of_a_view_shows_what_the_view_shows(items, overlay, tail):
    overlay = {index: message for index, message in overlay.items() if index < len(items)}
    view = Messages(items, overlay=overlay, tail=tuple(tail))
    assert list(Messages(view)) == list(view)


steps = st.lists(
    st.tuples(st.just("add"), st.integers(0, 99))
    | st.tuples(st.just("cut"), st.integers(0, 9))
    | st.tuples(st.just("look"), st.just(0)),
    max_size=25,
)


@given(steps)
def test_a_transcript_grows_and_shrinks_by_folding_and_older_views_never_change(steps):
    fold = Fold("s")
    fold.add(TurnStarted(1, user("hello"), "s/t1"))
    expected: list[Message] = []
    seen: list[tuple[Messages, list[Message]]] = []
    for what, number in steps:
        if what == "add":
            fold.add(MessageAdded(user(str(number))))
            expected.append(user(str(number)))
        elif what == "cut":
            fold.add(Rewound(1, min(number, len(expected))))
            del expected[number:]
        seen.append((fold.messages, list(expected)))
        if what == "look":
            seen.append((fold.state.messages, list(expected)))
        assert fold.messages == expected
    for view, then in seen:
        assert_same(view, then)


def test_a_list_that_is_handed_in_may_change_afterwards():
    items = [user("a")]
    view = Messages(items)
    items.append(user("b"))
    items[0] = user("c")
    assert view == [user("a")]


def test_a_slice_is_a_list_of_ones_own():
    view = Messages([user("a"), user("b")])
    view[:].clear()
    assert len(view) == 2


# ---------------------------------------------------------------- calls


def test_the_arguments_of_a_call_are_decoded_anew_each_time():
    call = ToolCall("s/1/1", "add", '{"a":[1,2],"b":{"c":1}}')
    before = call.digest
    call.arguments["a"].append(3)
    call.arguments["b"]["c"] = 2
    call.arguments.clear()
    assert call.arguments == {"a": [1, 2], "b": {"c": 1}}
    assert (call.json, call.digest) == ('{"a":[1,2],"b":{"c":1}}', before)
    part = ToolCallPart("add", '{"a":1}')
    part.arguments["a"] = 2
    assert part.arguments == {"a": 1}


@given(st.dictionaries(texts, plain_values, max_size=3))
def test_arguments_given_as_a_mapping_are_kept_as_text(arguments):
    call = ToolCall("s/1/1", "add").replace(arguments=arguments)
    assert call.arguments == arguments
    assert call.id == "s/1/1"


def test_later_changes_of_the_mapping_do_not_reach_the_call():
    arguments = {"a": [1]}
    call = ToolCall("s/1/1", "add").replace(arguments=arguments)
    arguments["a"].append(2)
    assert call.arguments == {"a": [1]}


def test_a_call_keeps_its_id():
    call = ToolCall("s/1/1", "add")
    assert call.replace(id="s/1/1", json="[]").json == "[]"
    with pytest.raises(ValueError, match="keeps its id"):
        call.replace(id="s/1/2")


BROKEN = ["", "[]", "1", "null", "{", '{"a":', "\ud800", '{"a":' + "[" * 100_000, "\x00"]


@pytest.mark.parametrize("json", BROKEN, ids=lambda text: ascii(text[:12]))
def test_arguments_that_are_no_json_object_read_as_none_and_never_raise(json):
    assert ToolCall("s/1/1", "add", json).arguments == {}
    assert ToolCallPart("add", json).arguments == {}
    assert len(ToolCall("s/1/1", "add", json).digest) == 32


def test_arguments_with_a_lone_surrogate_can_be_read():
    assert ToolCall("s/1/1", "add", '{"a":"\ud800"}').arguments in ({}, {"a": "\ud800"})
    assert ToolCall("s/1/1", "add", r'{"a":"\ud800"}').arguments in ({}, {"a": "\ud800"})


def test_the_digest_of_a_call_is_the_same_for_ever():
    assert ToolCall("s/1/1", "add", '{"a":1,"b":2}').digest == "2934886d69a996859fd05c839b9c08b9"
    assert ToolCall("s/1/1", "add", '{"a":"\ud800"}').digest == "2cd8c9569b64cfcb4b0ace78f6a1b852"
    assert digest("a", "b") == "852635742d6eb30fdccb0e7c1b53d92f"


names = st.text(st.characters(exclude_characters="\0", exclude_categories=()), max_size=5)


@given(names, names, names, names)
def test_a_digest_binds_the_name_and_the_text_of_the_arguments_and_nothing_else(name, json, other, other_json):
    first = ToolCall("s/1/1", name, json, "v1")
    assert first.digest == ToolCall("s/9/9", name, json).digest
    assert (first.digest == ToolCall("s/1/1", other, other_json).digest) is ((name, json) == (other, other_json))


# ---------------------------------------------------------------- what others hand in


@given(plain_values)
def test_anything_a_tool_returns_becomes_content(value):
    content = render(value)
    assert content
    assert as_result(value).content == content
    if isinstance(value, str):
        assert content == (TextPart(value),)


def test_a_result_is_taken_as_it_is():
    result = text_result("no", "denied")
    assert as_result(result, "ok") is result
    assert result.is_error
    assert not text_result("yes").is_error


def test_only_a_reply_a_message_or_a_text_is_a_reply():
    assert as_reply("hi").text == "hi"
    assert as_reply(assistant("hi")).text == "hi"
    assert as_reply(Message("assistant", (ToolCallPart("add"),))).finish == "tool_calls"
    for wrong in (None, 1, {"text": "hi"}, ["hi"], b"hi"):
        with pytest.raises(BadReply, match=type(wrong).__name__):
            as_reply(wrong)


def test_what_is_no_message_is_refused_by_its_position():
    with pytest.raises(TypeError, match="int"):
        as_message(1)
    with pytest.raises(TypeError, match="message 1 is a str"):
        checked_messages([user("a"), "b"])
    with pytest.raises(ValueError, match=r"message 0 has role 'system'.*system"):
        checked_messages([Message("system", ())])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="int"):
        as_parts(["a", 1])


def test_parts_that_are_injected_say_where_they_come_from():
    assert as_parts(["a", TextPart("b", "me")], "hook") == (TextPart("a", "hook"), TextPart("b", "me"))


# ---------------------------------------------------------------- extremes

lone = st.text(st.characters(categories=("Cs", "Ll", "Nd")), min_size=1, max_size=8)


@given(lone)
def test_lone_surrogates_survive_in_messages_calls_and_results(text):
    assert user(text).text == text
    assert len(digest(text)) == 32
    call = ToolCall("s/1/1", "add").replace(arguments={"text": text})
    assert call.arguments == {"text": text}
    assert as_result({"text": text}).text


def test_ten_megabytes_survive():
    text = "ä" * 5_000_000
    message = user(text)
    assert msgspec.json.decode(msgspec.json.encode(message), type=Message) == message
    call = ToolCall("s/1/1", "add").replace(arguments={"text": text})
    assert call.arguments["text"] == text
    assert len(call.digest) == 32
