"""Redact: hides secrets and personal data in all that enters or leaves an agent."""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

import msgspec

from windlass.decisions import Deny, Halt
from windlass.errors import ConfigError
from windlass.events import MessageAdding, ModelCalling, ModelReplying, ToolCalling, ToolReturning, TurnStarting
from windlass.messages import Message, ModelRequest, TextPart, ThinkingPart, ToolResult

from .detectors import BuiltIn, Detector, Found, check_kind, detectors_of, merged
from .kinds import SHORTEST
from .option_types import check_types
from .options import require_name

if TYPE_CHECKING:
    from windlass import Hooks

T = TypeVar("T")
Place = Literal["input", "output", "thinking", "arguments", "results", "answers", "errors", "requests"]
PLACES: tuple[Place, ...] = ("input", "output", "thinking", "arguments", "results", "answers", "errors")
_Stream = Literal["text", "thinking"]
_CHANNELS: tuple[tuple[Place, _Stream], ...] = (("output", "text"), ("thinking", "thinking"))
ACTIONS = ("redact", "mask", "hash", "block")
Action: TypeAlias = Literal["redact", "mask", "hash", "block"] | Callable[[str, str], str]
"""What happens to a find: one of the names, or a function of the kind and the text that returns a new text."""


@runtime_checkable
class Vault(Protocol):
    """Keeps what was hidden, so that tools can get it back. It belongs to the application.

    `hide` returns a placeholder that nobody can guess: a model that guessed one could get the text of another user.
    """

    def hide(self, kind: str, text: str) -> str:
        """Store a text, and return the placeholder for it."""
        ...

    def reveal(self, text: str) -> str:
        """The text with what was hidden in place of the placeholders."""
        ...


class MemoryVault:
    """A vault in the memory of this process. The same text always gets the same placeholder."""

    def __init__(self) -> None:
        self._placeholders: dict[tuple[str, str], str] = {}
        self._texts: dict[str, str] = {}

    def hide(self, kind: str, text: str) -> str:
        """The placeholder of a text."""
        fresh = f"[{kind}:{secrets.token_hex(8)}]"
        placeholder = self._placeholders.setdefault((kind, text), fresh)
        self._texts[placeholder] = text
        return placeholder

    def reveal(self, text: str) -> str:
        """The text with its placeholders replaced by what they stand for."""
        return re.sub(r"\[\w+:[0-9a-f]{16}\]", lambda match: self._texts.get(match[0], match[0]), text)


class Redact:
    """Hide secrets and personal data.

    `kinds` are names of kinds, the groups `"secrets"` and `"pii"`, and detectors of your own; by default both groups.
    `action` applies to every find, `actions` to single kinds. `where` lists the places to look at. `"hash"` needs a
    `key`: without one, a hash of a card number could be guessed. With a `vault`, finds become placeholders, and the
    tools that `reveal_to` names get the real text.
    """

    @check_types
    def __init__(
        self,
        *kinds: str | Detector,
        action: Action = "redact",
        actions: Mapping[str, Action] | None = None,
        where: Place | Iterable[Place] = PLACES,
        key: str | bytes | None = None,
        vault: Vault | None = None,
        reveal_to: Any = None,
        inherit: bool = False,
        name: str = "redact",
    ) -> None:
        require_name("Redact", name)
        self.name = name
        self.detectors = detectors_of(kinds or ("secrets", "pii"))
        self._shortest = SHORTEST if all(isinstance(one, BuiltIn) for one in self.detectors) else 0
        self.kinds = [kind for detector in self.detectors for kind in detector.kinds]
        self.where: tuple[Any, ...] = (where,) if isinstance(where, str) else tuple(where)
        self.inherit = inherit
        self.vault = vault
        self.reveal_to = reveal_to
        self._key = key.encode() if isinstance(key, str) else key
        self.actions: dict[str, Action] = {kind: self._checked(kind, action) for kind in self.kinds}
        for kind, chosen in (actions or {}).items():
            if kind not in self.actions:
                raise ConfigError(
                    f"Redact: actions names {kind!r}, which is not looked for; it finds {_listed(self.kinds)}"
                )
            self.actions[kind] = self._checked(kind, chosen)
        if (vault is None) != (reveal_to is None):
            raise ConfigError(
                "Redact: give vault= and reveal_to= together: reveal_to names the tools that get the real text, "
                "such as 'send_mail', or '*' for all"
            )
        blocked = [kind for kind, chosen in self.actions.items() if chosen == "block"]
        self._blocked = re.compile("|".join(rf"\[({kind}) blocked\]" for kind in blocked)) if blocked else None

    def _checked(self, kind: str, action: object) -> Action:
        check_kind(kind)
        if not callable(action) and action not in ACTIONS:
            raise ConfigError(
                f"Redact: {action!r} is not an action for {kind!r}; use {_listed(ACTIONS)}, or a function"
            )
        if action == "hash" and not self._key:
            raise ConfigError('Redact: action "hash" needs key=…: without it, what was hidden could be guessed')
        return action  # type: ignore[return-value]

    # ------------------------------------------------------------ texts

    def clean(self, text: str) -> str:
        """The text without what was found in it."""
        if len(text) < self._shortest:
            return text
        finds = self._find(text)
        return self._render(text, 0, len(text), finds) if finds else text

    def _find(self, text: str) -> list[Found]:
        finds = [found for detector in self.detectors for found in detector.find(text)]
        return merged(finds, text) if finds else []

    def _render(self, text: str, start: int, end: int, finds: Sequence[Found]) -> str:
        pieces: list[str] = []
        for found in finds:
            if start < found.end <= end:
                pieces += [text[start : found.start], self._replacement(found.kind, text[found.start : found.end])]
                start = found.end
        return "".join([*pieces, text[start:end]])

    def _replacement(self, kind: str, text: str) -> str:
        action = self.actions[kind]
        if callable(action):
            return action(kind, text)
        if action == "mask":
            return "*" * max(8, len(text) - 4) + (text[-4:] if len(text) > 8 else "")
        if action == "hash":
            return f"[{kind}:{hmac.new(self._key or b'', text.encode(), blake2b).hexdigest()[:16]}]"
        if action == "block":
            return f"[{kind} blocked]"
        return f"[{kind}]" if self.vault is None else self.vault.hide(kind, text)

    def clean_values(self, value: Any) -> Any:
        """A JSON value with each text in it cleaned, keys of objects too; the same object if nothing changes."""
        if isinstance(value, str):
            return self.clean(value)
        if isinstance(value, dict):
            pairs = {self.clean(name): self.clean_values(one) for name, one in value.items()}
            return value if pairs == value else pairs
        if isinstance(value, list | tuple):
            items = [self.clean_values(one) for one in value]
            return value if items == list(value) else items
        return value

    def clean_result(self, result: ToolResult) -> ToolResult:
        """A result with its content and data cleaned; the same object if nothing changes."""
        cleaned = result.map_text(self.clean)
        if result.data is None:
            return cleaned
        data = self.clean_values(result.data)
        return cleaned if data is result.data or data == result.data else cleaned.replace(data=data)

    # ------------------------------------------------------------ hooks

    def install(self, registrar: Hooks) -> None:
        """Register the hooks for the places to look at."""
        where, inherit = self.where, self.inherit
        if "input" in where:

            @registrar.rewrite(TurnStarting, inherit=inherit, name=f"{self.name}_input")
            def clean_input(event: TurnStarting) -> Message | None:
                return _changed(event.message, event.message.map_text(self.clean))

            @registrar.rewrite(MessageAdding, inherit=inherit, name=f"{self.name}_message", when=_is_not_said_by_model)
            def clean_message(event: MessageAdding) -> Message | None:
                return _changed(event.message, event.message.map_text(self.clean))

        if "results" in where:

            @registrar.rewrite(ToolReturning, inherit=inherit, name=f"{self.name}_result")
            def clean_result(event: ToolReturning) -> ToolResult | None:
                return _changed(event.result, self.clean_result(event.result))

        if "requests" in where:

            @registrar.rewrite(ModelCalling, inherit=inherit, name=f"{self.name}_request")
            def clean_request(event: ModelCalling) -> ModelRequest | None:
                return _changed(event.request, event.request.map_text(self.clean))

        channels: tuple[_Stream, ...] = tuple([channel for place, channel in _CHANNELS if place in where])
        if channels:
            registrar.transform(channels=channels, inherit=inherit, name=f"{self.name}_output")(self._stream)
        if "arguments" in where:
            registrar.transform(channels=("arguments",), inherit=inherit, name=f"{self.name}_arguments")(
                self._arguments
            )
        if "answers" in where or "errors" in where:
            of = {"errors": "errors" in where, "answers": "answers" in where}
            registrar.conceal(self.clean, name=f"{self.name}_conceal", inherit=inherit, **of)
        if self.vault is not None:
            registrar.reveal(self.vault.reveal, tool=self.reveal_to, name=f"{self.name}_reveal", inherit=inherit)
        if self._blocked is not None:
            self._install_gates(registrar, self._blocked)

    def _install_gates(self, registrar: Hooks, blocked: re.Pattern[str]) -> None:
        """Refuse what has a mark that the rewrites and transformers left where they found a blocked kind."""

        def reason(what: str, texts: Iterable[str]) -> str | None:
            marks = sorted({str(match[match.lastindex or 0]) for text in texts for match in blocked.finditer(text)})
            return f"{what} has content that is not allowed: {', '.join(marks)}" if marks else None

        @registrar.gate(TurnStarting, inherit=self.inherit, name=f"{self.name}_block_input")
        def block_input(event: TurnStarting) -> Halt | None:
            why = reason("the message", [event.message.text])
            return None if why is None else Halt(why)

        @registrar.gate(ModelReplying, inherit=self.inherit, name=f"{self.name}_block_output")
        def block_output(event: ModelReplying) -> Halt | None:
            parts = event.reply.message.parts
            why = reason("the reply", [part.text for part in parts if isinstance(part, TextPart | ThinkingPart)])
            return None if why is None else Halt(why)

        @registrar.gate(ToolCalling, inherit=self.inherit, name=f"{self.name}_block_call")
        def block_call(event: ToolCalling) -> Deny | None:
            why = reason("the call", [event.call.json])
            return None if why is None else Deny(why)

        @registrar.gate(ToolReturning, inherit=self.inherit, name=f"{self.name}_block_result")
        def block_result(event: ToolReturning) -> Deny | None:
            why = reason("the result", [event.result.text, msgspec.json.encode(event.result.data).decode()])
            return None if why is None else Deny(why)

    # ------------------------------------------------------------ streams

    def _stream(self) -> Stream:
        return Stream(self)

    def _arguments(self) -> Arguments:
        return Arguments(self)

    def held(self, text: str) -> int:
        """From where on a text is not final, because more text may follow."""
        return min([detector.held(text) for detector in self.detectors])

    def clean_range(self, text: str, start: int, end: int) -> tuple[str, int]:
        """A part of a text without what was found in it, and where it ends: before a find that goes beyond `end`."""
        finds = self._find(text)
        for found in reversed(finds):
            if found.start < end < found.end:
                end = found.start
        return self._render(text, start, end, finds), end


class Stream:
    """Redacts a text as it streams. It holds back what may be the beginning of a find."""

    CONTEXT = 64

    def __init__(self, redact: Redact) -> None:
        self._redact = redact
        self._text = ""
        self._sent = 0

    def feed(self, text: str) -> Sequence[str]:
        """What is final, of the text so far."""
        self._text += text
        return self._release(self._redact.held(self._text))

    def flush(self) -> Sequence[str]:
        """The rest."""
        return self._release(len(self._text))

    def _release(self, held: int) -> Sequence[str]:
        if held <= self._sent:
            return ()
        output, cut = self._redact.clean_range(self._text, self._sent, held)
        keep = max(0, cut - self.CONTEXT)
        self._text, self._sent = self._text[keep:], cut - keep
        return (output,) if output else ()


_decode = msgspec.json.Decoder().decode


class Arguments:
    """Redacts the arguments of a call. They are held back until they are complete, and cleaned as decoded values."""

    def __init__(self, redact: Redact) -> None:
        self._redact = redact
        self._pieces: list[str] = []

    def feed(self, text: str) -> Sequence[str]:
        """Nothing yet."""
        self._pieces.append(text)
        return ()

    def flush(self) -> Sequence[str]:
        """The arguments; unchanged to the byte if nothing was found."""
        text = "".join(self._pieces)
        try:
            value = _decode(text)
        except msgspec.DecodeError:
            return (self._redact.clean(text),)
        cleaned = self._redact.clean_values(value)
        is_same = cleaned is value or cleaned == value
        return (text,) if is_same else (msgspec.json.encode(cleaned).decode(),)


def _is_not_said_by_model(event: MessageAdding) -> bool:
    """Whether transformers have not cleaned a message yet: they clean what models say."""
    return event.message.role != "assistant"


def _changed(before: T, after: T) -> T | None:
    return None if after is before else after


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
