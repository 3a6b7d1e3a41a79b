"""Redact: hides secrets and personal data in all that enters or leaves an agent."""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from windlass.errors import ConfigError
from windlass.events import MessageAdding, ModelCalling, ToolReturning, TurnStarting
from windlass.messages import Message, ModelRequest, ToolResult

from .built_in_detectors import BuiltIn, detectors_of
from .detectors import Detector, Found, check_kind, merged
from .kinds import SHORTEST
from .option_types import check_types
from .options import require_name
from .redact_gates import install_gates
from .redact_streams import Arguments, Stream
from .vaults import Vault

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
            install_gates(registrar, self._blocked, name=self.name, inherit=self.inherit)

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


def _is_not_said_by_model(event: MessageAdding) -> bool:
    """Whether transformers have not cleaned a message yet: they clean what models say."""
    return event.message.role != "assistant"


def _changed(before: T, after: T) -> T | None:
    return None if after is before else after


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
