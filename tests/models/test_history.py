"""What has been encoded is used again, and a changed conversation is never sent as it was before."""

from hypothesis import given
from hypothesis import strategies as st

from windlass.messages import Message, Messages, TextPart, ToolCallPart, ToolResultPart
from windlass.models.history import History, Wire, by_role


class Counting:
    def __init__(self, *, merged: bool = False) -> None:
        self.encoded = 0
        join = by_role("content") if merged else list.extend
        self.history = History(self._encode, lambda ours, theirs: theirs or f"made-{ours}", join)

    def _encode(self, message: Message, id_of) -> list[Wire]:
        self.encoded += 1
        content = [id_of(part) if type(part) is ToolResultPart else str(part) for part in message.parts]
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


pool = [
    text("a"),
    text("b"),
    text("c", "assistant"),
    Message("user", ()),
    call("c1", "x"),
    call("c1", "y"),
    result("c1"),
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
        overlay = {replaced: text("instead")} if replaced is not None and replaced < len(items) // 2 else None
        view = Messages(view, overlay=overlay, tail=(text("now"),) * tail)
        assert kept.encoded(view) == Counting(merged=merged).history.encoded(list(view))
