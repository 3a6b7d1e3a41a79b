"""What has been encoded is used again, and a changed conversation is never sent as it was before."""

from hypothesis import given
from hypothesis import strategies as st

from windlass.messages import Message, Messages, TextPart, ToolCallPart, ToolResultPart
from windlass.models.history import History, Wire


def alternate(row: list[Wire], wire: list[Wire]) -> None:
    """Join as a vendor wants it who takes no two messages of one role in a row."""
    for one in wire:
        if row and row[-1]["role"] == one["role"]:
            row[-1] = {**row[-1], "content": [*row[-1]["content"], *one["content"]]}
        else:
            row.append(one)


class Counting:
    def __init__(self, *, merged: bool = False) -> None:
        self.encoded = 0
        join = alternate if merged else list.extend
        self.history = History(self._encode, lambda ours, theirs: theirs or f"made-{ours}", join)

    def _encode(self, message: Message, id_of) -> list[Wire]:
        self.encoded += 1
        content = [str(part) if type(part) is TextPart else id_of(part) for part in message.parts]
        return [{"role": message.role, "content": content}] if content else []


def text(word: str, role="user") -> Message:
    return Message(role, (TextPart(word),))


def call(id: str, vendor_id: str | None = None) -> Message:
    return Message("assistant", (ToolCallPart(name="look", id=id, vendor_id=vendor_id),))


def result(id: str) -> Message:
    return Message("tool", (ToolResultPart(call_id=id, name="look", content=(TextPart("seen"),)),))


def test_a_message_is_encoded_once_as_the_conversation_grows():
    counting = Counting()
    messages = [text("hello")]
    for step in range(100):
        messages += [call(f"c{step}"), result(f"c{step}")]
        counting.history.encoded(messages)
    assert counting.encoded == 201


def test_what_follows_a_message_that_changes_with_every_step_is_not_encoded_again():
    counting = Counting(merged=True)
    later = [message for step in range(50) for message in (call(f"c{step}"), result(f"c{step}"))]
    first = text("hello")
    for step in range(10):
        counting.history.encoded([first, text(f"now it is {step}"), *later])
    assert counting.encoded == 1 + 10 + 100


def test_a_result_follows_its_call_when_another_vendor_names_it():
    counting = Counting()
    first, answer = text("hello"), result("c1")
    before = counting.history.encoded([first, call("c1", "old"), answer])
    after = counting.history.encoded([first, call("c1", "new"), answer])
    assert (before[-1]["content"], after[-1]["content"]) == (["old"], ["new"])


def test_two_calls_never_share_an_id_though_the_vendor_gives_it_again():
    messages = [text("hello"), call("c1", "call_1"), result("c1"), call("c2", "call_1"), result("c2")]
    wire = Counting().history.encoded(messages)
    assert [one["content"] for one in wire[1:]] == [["call_1"], ["call_1"], ["made-c2"], ["made-c2"]]
    shorter = Counting().history.encoded([messages[0], *messages[3:]])
    assert [one["content"] for one in shorter[1:]] == [["call_1"], ["call_1"]]


def test_a_message_with_something_laid_over_it_costs_no_encoding_of_those_after_it():
    counting = Counting(merged=True)
    items = [text("hello")]
    for step in range(50):
        items += [call(f"c{step}"), result(f"c{step}")]
        counting.history.encoded(Messages(Messages.sharing(items), overlay={0: text("hello, on a Monday")}))
    assert counting.encoded == 101


pool = [
    text("a"),
    text("b"),
    text("c", "assistant"),
    Message("user", ()),
    call("c1", "x"),
    call("c1", "y"),
    call("c2", "x"),
    result("c1"),
    result("c2"),
]
conversations = st.lists(st.lists(st.sampled_from(pool), max_size=8), max_size=6)


@given(conversations=conversations, merged=st.booleans())
def test_any_conversations_after_one_another_are_sent_as_if_they_were_the_first(conversations, merged):
    kept = Counting(merged=merged).history
    sent = [(kept.encoded(messages), messages) for messages in conversations]
    for wire, messages in sent:
        assert wire == Counting(merged=merged).history.encoded(messages)


steps = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.none() | st.integers(0, 9)), max_size=8)


@given(steps=steps, merged=st.booleans())
def test_views_of_a_list_that_grows_are_sent_as_if_they_were_the_first(steps, merged):
    """Each step sees more of the list or less, with a message of its own behind it or one replaced."""
    kept, items = Counting(merged=merged).history, [text("hello")]
    for grow, tail, replaced in steps:
        items += [call(f"c{len(items)}"), result(f"c{len(items)}")][:grow]
        view = Messages.sharing(items if grow else items[: len(items) // 2])
        overlay = (
            {replaced: text(f"instead of {replaced % 2}")}
            if replaced is not None and replaced < len(items) // 2
            else None
        )
        view = Messages(view, overlay=overlay, tail=(text("now"),) * tail)
        assert kept.encoded(view) == Counting(merged=merged).history.encoded(list(view))
