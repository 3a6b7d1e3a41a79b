"""The messages of a session as LangChain's, and what middlewares make of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    SystemMessage,
    ToolMessage,
    convert_to_messages,
    message_to_dict,
    messages_from_dict,
)
from langgraph.graph.message import add_messages
from msgspec import Struct
from msgspec.structs import replace

from windlass.compat.conversations import langchain, read_conversation
from windlass.compat.conversations.parts import MESSAGE, Ids, kept_fields, note
from windlass.messages import (
    MEDIA_PARTS,
    Message,
    ModelReply,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    digest,
    thawed,
)
from windlass.states import Step

from .thinking import is_of_langchain, without_strange_thinking


class Pieces(Struct):
    """The part of a view that seldom changes and may be long, in a slot of its own."""

    pieces: list[Any] = []
    upto: int = 0


class View(Struct):
    """What middlewares changed in a session's messages. The log is never edited.

    `pieces` replace the first `upto` messages of the session: a piece is a range of them, or a message of LangChain.
    `turn`, `before` and `step` say for which turn and step it was made. `results` has what middlewares answered for
    calls of the step, by call, `jump` is where they go on, `by` names who said so, and `text` is the last message.
    """

    pieces: list[Any] = []
    upto: int = 0
    turn: str = ""
    before: int = 0
    step: int = 0
    results: dict[str, dict[str, Any]] = {}
    jump: str = ""
    by: str = ""
    text: str | None = None
    tools: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether the messages are shown as they are."""
        return not self.pieces and not self.upto

    def of_step(self, step: int) -> bool:
        """Whether `results` and `jump` are about this step."""
        return self.step == step


class _OwnIds(Ids):
    """The ids of calls as Windlass has them: they are unique, and a result finds its call by them."""

    def __init__(self) -> None:
        super().__init__([])

    def call(self, part: ToolCallPart) -> str:
        return part.id or part.vendor_id or ""

    def result(self, part: ToolResultPart) -> str:
        return part.call_id

    def leave_out(self, what: str) -> None:
        """Nothing is lost: the messages of the session are still there."""


_IDS = _OwnIds()


class Entry(NamedTuple):
    """A message of the session, and the messages of LangChain that stand for it: one, or one for each result."""

    source: Message
    shown: list[BaseMessage]


class Transcript:
    """The messages of a session and what stands for each in LangChain; `m3` is the id of the fourth."""

    def __init__(self, known: Sequence[Entry] = ()) -> None:
        self.entries: list[Entry] = list(known)

    @classmethod
    def of(cls, messages: Sequence[Message], known: Sequence[Entry] = ()) -> Transcript:
        """The messages; those that `known` has need not be converted again."""
        made = cls()
        for index, message in enumerate(messages):
            if index < len(known) and known[index].source is message:
                made.entries.append(known[index])
            else:
                made.entries.append(Entry(message, _shown(message, index)))
        return made

    def with_reply(self, message: Message, reply: ModelReply | None = None) -> Transcript:
        """The same with one more message; `reply` is what else is known of it."""
        shown = _shown(message, len(self.entries))
        if reply is not None:
            shown = [_with_facts(one, reply) for one in shown]
        return Transcript([*self.entries, Entry(message, shown)])

    def with_step(self, id: str, step: Step) -> Transcript:
        """The same with what is known of the reply and the results of the latest step, whose message has this id."""
        data = {call.id: result.data for call, result in zip(step.calls, step.results, strict=True)}
        entries = list(self.entries)
        for index in range(len(entries) - 1, -1, -1):
            source, shown = entries[index]
            if source.role == "tool":
                entries[index] = Entry(source, [_with_data(one, data) for one in shown])
            if source.id == id and step.reply is not None:
                entries[index] = Entry(source, [_with_facts(one, step.reply) for one in shown])
            if source.role == "assistant":
                break
        return Transcript(entries)

    def shows(self, view: View, messages: Sequence[BaseMessage]) -> bool:
        """Whether these are the messages that a view shows, and no middleware has changed one in place."""
        given = iter(messages)
        for piece in [*view.pieces, [view.upto, len(self.entries)]]:
            if isinstance(piece, dict):
                if messages_from_dict([piece]) != [next(given, None)]:
                    return False
                continue
            for entry in self.entries[piece[0] : piece[1]]:
                if any(one != next(given, None) for one in entry.shown):
                    return False
        return next(given, None) is None

    # ------------------------------------------------------------ what middlewares see

    def seen(self, view: View) -> list[BaseMessage]:
        """The messages that middlewares see, as copies: what they change in place has no effect."""
        if view.is_whole:
            return [_copy(one) for entry in self.entries for one in entry.shown]
        found: list[BaseMessage] = []
        for piece in [*view.pieces, [view.upto, len(self.entries)]]:
            if isinstance(piece, dict):
                found += messages_from_dict([piece])
            else:
                found += [_copy(one) for entry in self.entries[piece[0] : piece[1]] for one in entry.shown]
        return found

    def changed(self, view: View, messages: Sequence[BaseMessage], *, awaits_results: bool = False) -> View:
        """The view that shows these messages. With `awaits_results`, those of the last reply will follow it."""
        originals = {one.id: (index, at, one) for index, at, one in self._all()}
        pieces: list[Any] = []
        waiting: list[tuple[int, int, BaseMessage]] = []  # results of one message, which belong together
        for message in messages:
            known = originals.get(message.id)
            if known is None or known[2] != message:
                _flush(pieces, waiting)
                pieces.append(message_to_dict(message))
                continue
            index, at, _ = known
            if (waiting and (waiting[-1][0], waiting[-1][1] + 1) != (index, at)) or (not waiting and at):
                _flush(pieces, waiting)
                if at:
                    pieces.append(message_to_dict(message))
                    continue
            waiting.append((index, at, message))
            if len(waiting) == len(self.entries[index].shown):
                waiting.clear()
                _extend(pieces, index)
        _flush(pieces, waiting)
        length = len(self.entries)
        if awaits_results:
            _await_results(pieces, length)
            length += 1
        if pieces and isinstance(pieces[-1], list) and pieces[-1][1] == length:
            length = pieces.pop()[0]  # what follows is shown as it is
        return replace(view, pieces=pieces, upto=length)

    def _all(self) -> Iterable[tuple[int, int, BaseMessage]]:
        for index, entry in enumerate(self.entries):
            for at, one in enumerate(entry.shown):
                yield index, at, one

    # ------------------------------------------------------------ what the model gets

    def applied(self, view: View, request: Sequence[Message]) -> tuple[list[Message], str]:
        """The messages of a request with the view applied, and system text that middlewares put among them.

        What hooks injected beside a message stays beside it. Messages that are not of the session, such as the summary
        of a compaction, stay where they are.
        """
        places = {_key(entry.source): index for index, entry in enumerate(self.entries)}
        sent: dict[int, Message] = {}
        strange: dict[int, list[Message]] = {}
        waiting: list[Message] = []
        for message in request:
            index = places.get(_key(message))
            if index is None or index in sent:
                waiting.append(message)
                continue
            sent[index] = message
            if waiting:
                strange[index] = waiting
                waiting = []
        made: list[Message] = []
        system: list[str] = []
        shown_at = {one.id: index for index, _, one in self._all()}
        for piece in [*view.pieces, [view.upto, len(self.entries)]]:
            if isinstance(piece, dict):
                [literal] = messages_from_dict([piece])
                if isinstance(literal, SystemMessage):
                    system.append(str(literal.text))
                    continue
                index = shown_at.get(literal.id)
                source = None if index is None else self.entries[index].source
                made += [
                    _attached(ours, source, sent.get(index) if index is not None else None)
                    for ours in self.back([literal])
                ]
                continue
            for index in range(*piece):
                made += strange.pop(index, ())
                if index in sent:
                    made.append(sent[index])
        for index in sorted(strange):
            made = [*strange[index], *made]
        return [*made, *waiting], "\n\n".join(system)

    def back(self, messages: Sequence[BaseMessage]) -> list[Message]:
        """Messages of LangChain as Windlass's: those that did not change are the very messages of the session."""
        originals = {one.id: (index, one) for index, _, one in self._all()}
        made: list[Message] = []
        whole: set[int] = set()
        for message in messages:
            known = originals.get(message.id)
            if known is not None and known[1] == message and len(self.entries[known[0]].shown) == 1:
                made.append(self.entries[known[0]].source)
            elif known is not None and _shows_all(self.entries[known[0]], messages):
                if known[0] not in whole:
                    whole.add(known[0])
                    made.append(self.entries[known[0]].source)
            else:
                made += _ours(message, self.entries[known[0]].source if known else None)
        return made


def _flush(pieces: list[Any], waiting: list[tuple[int, int, BaseMessage]]) -> None:
    """Results whose siblings are gone cannot be shown by a range."""
    pieces += [message_to_dict(message) for _, _, message in waiting]
    waiting.clear()


def _await_results(pieces: list[Any], length: int) -> None:
    """Put the message with the results, which the session will have next, right behind the reply. What middlewares have
    added comes after it: vendors refuse anything between calls and results."""
    for at, piece in enumerate(pieces):
        if (isinstance(piece, list) and piece[1] == length) or (
            isinstance(piece, dict) and _id(piece) == f"m{length - 1}"
        ):
            pieces.insert(at + 1, [length, length + 1])
            if isinstance(piece, list):
                pieces[at : at + 2] = [[piece[0], length + 1]]
            return
    pieces.append([length, length + 1])


def _id(piece: dict[str, Any]) -> Any:
    return piece["data"].get("id")


def _extend(pieces: list[Any], index: int) -> None:
    if pieces and isinstance(pieces[-1], list) and pieces[-1][1] == index:
        pieces[-1][1] = index + 1
    else:
        pieces.append([index, index + 1])


def _shows_all(entry: Entry, messages: Sequence[BaseMessage]) -> bool:
    given = {message.id: message for message in messages}
    return all(given.get(one.id) == one for one in entry.shown)


def _key(message: Message) -> Any:
    """What tells a message of the session also when hooks have injected something beside its parts."""
    if not message.parts:
        return id(message)
    first = message.parts[0]
    return first.call_id if isinstance(first, ToolResultPart) else id(first)


def _attached(message: Message, source: Message | None, sent: Message | None) -> Message:
    """A message with the parts that hooks injected beside the one that it replaces."""
    if source is None or sent is None or sent is source:
        return message
    if message.role != "tool":
        return message.replace(parts=(*message.parts, *sent.parts[len(source.parts) :]))
    added: dict[str, tuple[Any, ...]] = {}
    for before, after in zip(source.parts, sent.parts, strict=False):
        if isinstance(before, ToolResultPart) and isinstance(after, ToolResultPart):
            added[before.call_id] = after.content[len(before.content) :]
    parts: list[Part] = [
        part.replace(content=(*part.content, *added.get(part.call_id, ())))
        if isinstance(part, ToolResultPart)
        else part
        for part in message.parts
    ]
    return message.replace(parts=tuple(parts))


def _shown(message: Message, index: int) -> list[BaseMessage]:
    wire: list[dict[str, Any]] = []
    langchain.add(wire, without_strange_thinking(message), _IDS)
    made = messages_from_dict(wire)
    for at, one in enumerate(made):
        one.id = f"m{index}" if at == 0 else f"m{index}.{at}"
    return made


def _with_facts(message: BaseMessage, reply: ModelReply) -> BaseMessage:
    """A message of a model with its usage and its metadata, unless LangChain has told them."""
    if not isinstance(message, AIMessage):
        return message
    used = reply.usage
    details = {"cache_read": used.cached, "cache_creation": used.cache_written}
    usage: Any = {
        "input_tokens": used.input,
        "output_tokens": used.output,
        "total_tokens": used.input + used.output,
        "input_token_details": details,
        "output_token_details": {"reasoning": used.reasoning},
    }
    about = {"finish_reason": reply.raw_finish or reply.finish, "model_name": reply.model}
    return message.model_copy(
        update={
            "usage_metadata": message.usage_metadata or usage,
            "response_metadata": about | message.response_metadata,
        }
    )


def _with_data(message: BaseMessage, data: Mapping[str, Any]) -> BaseMessage:
    """A result with the data that is not for the model, which LangChain calls the artifact."""
    if not isinstance(message, ToolMessage) or data.get(message.tool_call_id) is None:
        return message
    return message.model_copy(update={"artifact": thawed(data[message.tool_call_id])})


def _copy(message: BaseMessage) -> BaseMessage:
    if (isinstance(message, AIMessage) and message.tool_calls) or not isinstance(message.content, str):
        return deepcopy(message)
    return message.model_copy()


# ---------------------------------------------------------------- messages and replies back


def _ours(message: BaseMessage, source: Message | None = None) -> list[Message]:
    """A message that a middleware made or changed. What LangChain cannot hold of the source is kept."""
    about: dict[str, Any] = {"id": None, "usage_metadata": None, "response_metadata": {}, "artifact": None}
    known_fields = {name: value for name, value in about.items() if name in type(message).model_fields}
    made: list[Message] = read_conversation("langchain", [message.model_copy(update=known_fields)]).messages
    if source is None:
        return [_with_own_ids(one, {}) for one in made]
    known = {call.id: call for call in source.tool_calls if call.id}
    strange = not any(map(is_of_langchain, source.parts))
    before = [part for part in source.parts if strange and type(part) is ThinkingPart]
    after = [part for part in source.parts if type(part) is OpaquePart and (not is_of_langchain(part) or _facts(part))]
    notes = {note(part): part for part in source.parts if isinstance(part, MEDIA_PARTS)}
    found: list[Message] = []
    for one in made:
        parts = [notes.get(part.text, part) if type(part) is TextPart else part for part in one.parts]
        found.append(_with_own_ids(one.replace(parts=(*before, *parts, *after)), known))
    return found if message.type != "tool" else made


def _facts(part: Any) -> bool:
    """Whether a part has what LangChain told of a reply: its usage and its metadata."""
    fields = kept_fields(part, langchain.VENDOR, MESSAGE)
    return fields is not None and bool({"usage_metadata", "response_metadata"} & fields.keys() or not fields)


def _with_own_ids(message: Message, known: dict[str, ToolCallPart]) -> Message:
    parts = [_with_own_id(part, known) if type(part) is ToolCallPart else part for part in message.parts]
    return message.replace(parts=tuple(parts))


def _with_own_id(part: ToolCallPart, known: dict[str, ToolCallPart]) -> ToolCallPart:
    """A call with the ids that Windlass and the vendor gave it."""
    id = part.vendor_id or ""
    call = known.get(id)
    if call is None:
        return part.replace(id=id) if "/" in id else part
    return part.replace(id=call.id, vendor_id=call.vendor_id)


def reply_with_ids(reply: ModelReply, step: str) -> Message:
    """The message of a reply with the ids that its calls will have in the log."""
    number = 0
    parts: list[Part] = []
    for part in reply.message.parts:
        if isinstance(part, ToolCallPart):
            number += 1
            part = part.replace(id=f"{step}/{number}")
        parts.append(part)
    return reply.message.replace(parts=tuple(parts))


def reply_of_message(message: BaseMessage, source: Message | None = None) -> Message:
    """The one message of a reply."""
    made = _ours(message, source)
    return made[0] if len(made) == 1 else Message("assistant", tuple(part for one in made for part in one.parts))


def added(messages: Sequence[BaseMessage], update: Any, place: str) -> Any:
    """The messages after an update of a middleware, by LangGraph's rules: each message has an id first.

    The ids of new messages follow from where and what they are, so that a resumed turn makes the same ones.
    """
    given = update if isinstance(update, list | tuple) and not _is_pair(update) else [update]
    right = convert_to_messages(given)
    taken = {message.id for message in messages}
    for at, message in enumerate(right):
        if message.id is None:
            message.id = f"x{digest(place, str(at), message.type, str(message.content))[:16]}"
            while message.id in taken:
                message.id += "'"
            taken.add(message.id)
    return add_messages(list(messages), right)  # type: ignore[arg-type]


def _is_pair(update: Any) -> bool:
    return isinstance(update, tuple) and len(update) == 2 and isinstance(update[0], str)
