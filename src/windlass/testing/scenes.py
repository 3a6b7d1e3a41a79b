"""The scenes of `check_model`: a request, and what the vendor's wire must answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from windlass.errors import (
    AuthFailed,
    BadRequest,
    ConnectionFailed,
    ContextOverflow,
    ModelError,
    ModelNotFound,
    Overloaded,
    QuotaExceeded,
    RateLimited,
    ServerError,
)
from windlass.messages import (
    ImagePart,
    Message,
    Messages,
    ModelReply,
    ModelRequest,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
    Usage,
    frozen,
    user,
)

SceneEnding = Literal["ends", "breaks", "breaks off", "fails", "stalls"]
"""How the answer ends: normally, with a lost connection, too early, with an error in the stream, or never."""

TEXT = "Hello, world."
SIGNATURE = "c2lnbmVk"
UNKNOWN = "nobody knows what this is"
FOREIGN = "another vendor's secret"
PICTURE = b"\x89PNG\r\n\x1a\n windlass"
SPENT = Usage(input=11, output=5)


class Scene(Struct, frozen=True):
    """One scene: a request, and what the vendor must answer.

    `replies` are the expected replies, one for each request; the wire must say the same in the vendor's format. If
    `error` is set, the wire must fail with `message`, and the model must raise that error. Streamed texts and arguments
    should come in several pieces. `streamed` says whether the request will be streamed.
    """

    name: str
    wants: str
    replies: tuple[ModelReply, ...] = ()
    error: type[ModelError] | None = None
    retryable: bool | None = False
    retry_after: float | None = None
    message: str = ""
    ending: SceneEnding = "ends"
    streamed: bool = False
    only: Literal["whole", "streamed"] | None = None
    ask: Callable[[], ModelRequest] = lambda: asking()

    @property
    def label(self) -> str:
        """The name in reports."""
        return f"{self.name}, streamed" if self.streamed else self.name

    def ways(self) -> list[Scene]:
        """The scene whole and streamed, unless it is for one of them only."""
        return [replace(self, streamed=way == "streamed") for way in ("whole", "streamed") if self.only in (None, way)]


def said(*parts: Part, finish: str = "stop", usage: Usage = SPENT) -> ModelReply:
    """A model's reply."""
    return ModelReply(Message("assistant", parts), usage, finish)


def asking(text: str = "Say hello.", **fields: Any) -> ModelRequest:
    """An immutable request with one message."""
    return ModelRequest("You are a parrot.", Messages([user(text)]), (WEATHER,), **fields)


WEATHER = ToolSpec(
    "weather",
    "The weather in a city.",
    frozen({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}),
)


def weather(city: str, number: int = 1) -> ToolCallPart:
    """A call of the weather tool."""
    return ToolCallPart("weather", f'{{"city": "{city}"}}', vendor_id=f"call_{number}")


def _conversation() -> ModelRequest:
    """A request with calls and results, and with parts of other vendors."""
    calls = (
        ToolCallPart("weather", '{"city": "Paris"}', id="s/1/0", vendor_id="foreign|id/1"),
        ToolCallPart("weather", '{"city": "Rome"}', id="s/1/1"),
    )
    foreign = (ThinkingPart(FOREIGN, "foreign", vendor="somebody"), OpaquePart("somebody", {"type": FOREIGN}))
    results = (
        ToolResultPart("s/1/0", "weather", (TextPart("18 degrees"),)),
        ToolResultPart("s/1/1", "weather", (TextPart("no such city"),), status="error"),
    )
    messages = [
        user("How is the weather?"),
        Message("assistant", (*foreign, TextPart("Let me see."), *calls)),
        Message("tool", results),
        user("Well?"),
    ]
    return asking().replace(messages=messages)


def _picture() -> ModelRequest:
    message = Message("user", (TextPart("What is that?"), ImagePart(PICTURE)))
    return asking().replace(messages=[message])


def _output() -> ModelRequest:
    schema = {
        "type": "object",
        "properties": {"capital": {"type": "string", "description": "A city."}},
        "required": ["capital"],
        "additionalProperties": False,
    }
    return asking("The capital of France?", output=frozen(schema)).replace(tools=())


def _settings() -> ModelRequest:
    return asking(settings=frozen({"temperature": 0.25, "max_tokens": 77, "extra": {"windlass_extra": "passed on"}}))


def _failing(name: str, error: type[ModelError], wants: str, *, retryable: bool = False, **more: Any) -> Scene:
    message = f"this is a test of {name}"
    return Scene(name, f"{wants}, with the message {message!r}", (), error, retryable, message=message, **more)


_HELLO = said(TextPart(TEXT))
_CUT = (said(TextPart(TEXT), finish="other"),)

SCENES: tuple[Scene, ...] = (
    Scene("text", f"{TEXT!r}; 11 tokens in and 5 out", (_HELLO, _HELLO)),
    Scene("silence", "no text, and a normal finish", (said(),)),
    Scene(
        "thinking",
        f"the thought 'Let me think.', signed {SIGNATURE!r} if the vendor signs, then {TEXT!r}",
        (said(ThinkingPart("Let me think.", SIGNATURE), TextPart(TEXT)), _HELLO),
    ),
    Scene("call", "a call of `weather` for Paris", (said(weather("Paris"), finish="tool_calls"),)),
    Scene(
        "several calls",
        "the text 'Let me see.', then calls of `weather` for Paris and for Rome",
        (said(TextPart("Let me see."), weather("Paris"), weather("Rome", 2), finish="tool_calls"),),
    ),
    Scene(
        "no arguments",
        "a call of `weather` without arguments",
        (said(ToolCallPart("weather", "{}", vendor_id="call_1"), finish="tool_calls"),),
    ),
    Scene(
        "broken arguments",
        "a call of `weather` whose arguments are `{\"city\": \"Par`",
        (said(ToolCallPart("weather", '{"city": "Par', vendor_id="call_1"), finish="tool_calls"),),
    ),
    Scene("length", "'Hello, wor', cut off by the token limit", (said(TextPart("Hello, wor"), finish="length"),)),
    Scene("refusal", "a refusal: 'I will not.'", (said(TextPart("I will not."), finish="refusal"),)),
    Scene(
        "filter", "'Hello,', cut off by a content filter", (said(TextPart("Hello,"), finish="content_filter"),)
    ),
    Scene(
        "usage",
        f"{TEXT!r}; 100 tokens in, 60 of them cached, and 50 out, 30 of them for reasoning if the vendor reports it",
        (said(TextPart(TEXT), usage=Usage(input=100, output=50, cached=60, reasoning=30)),),
    ),
    Scene(
        "unknown",
        f"an item of an unknown kind that contains {UNKNOWN!r}, then {TEXT!r}",
        (said(OpaquePart("", UNKNOWN), TextPart(TEXT)), _HELLO),
    ),
    Scene(
        "conversation", f"{TEXT!r}, in answer to calls, results and parts of other vendors", (_HELLO,) * 2,
        ask=_conversation,
    ),
    Scene("picture", f"{TEXT!r}, in answer to a picture", (_HELLO,), ask=_picture),
    Scene("output", "the JSON `{\"capital\": \"Paris\"}`", (said(TextPart('{"capital": "Paris"}')),), ask=_output),
    Scene("settings", f"{TEXT!r}, in answer to a request with settings", (_HELLO,), ask=_settings),
    Scene(
        "at once", "'One.' and 'Two.', in answer to two concurrent requests",
        (said(TextPart("One.")), said(TextPart("Two."))),
    ),
    _failing("a rate limit", RateLimited, "a rate limit with a wait of 7 seconds", retryable=True, retry_after=7.0),
    _failing("a spent quota", QuotaExceeded, "an exhausted quota"),
    _failing("overload", Overloaded, "an overload", retryable=True),
    _failing("a server's error", ServerError, "an internal error", retryable=True),
    _failing("a wrong key", AuthFailed, "a rejected key"),
    _failing("an unknown model", ModelNotFound, "an unknown model"),
    _failing("a bad request", BadRequest, "a rejected request"),
    _failing("a long request", ContextOverflow, "a request that exceeds the context window"),
    Scene("garbage", "an HTML page with status 200", error=ModelError, retryable=None),
    Scene(
        "a broken connection", f"half of {TEXT!r}, then a broken connection", _CUT, ConnectionFailed, True,
        ending="breaks",
    ),
    Scene(
        "an early end", f"half of {TEXT!r}, then the end of the stream", _CUT, ConnectionFailed, True,
        ending="breaks off", only="streamed",
    ),
    replace(
        _failing("an error in the stream", ModelError, f"half of {TEXT!r}, then a temporary error"),
        replies=_CUT, retryable=True, ending="fails", only="streamed",
    ),
    Scene(
        "a pause", f"half of {TEXT!r}, then nothing, with the connection open", _CUT * 2, ending="stalls",
        only="streamed",
    ),
)  # fmt: skip
"""All scenes, in the order in which `check_model` runs them."""
