"""A server that Bedrock's adapter asks, what it says, and what AWS's own description of Converse says of a request."""

from __future__ import annotations

from functools import cache
from typing import Any

from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.validate import ParamValidator
from tests.models import serving
from tests.models.serving import Pieces, asked, asking, cut, facts, heard
from tests.models.wires import frame, frames

from windlass.models.bedrock import BedrockConverse

MODEL = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
ADDRESS = "https://bedrock-runtime.us-east-1.amazonaws.com"
USAGE = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}


class Server(serving.Server):
    """Serves answers in turn to a model."""

    def model(self, model: str = MODEL, **settings: Any) -> BedrockConverse:
        """A model that asks this server."""
        return BedrockConverse(model, client=self.http, api_key="k", base_url=ADDRESS, settings=settings)


def answer(*content: Any, stop: str = "end_turn", **more: Any) -> dict[str, Any]:
    """A whole answer; a text is a block of text."""
    blocks = [{"text": block} if isinstance(block, str) else block for block in content]
    message = {"role": "assistant", "content": blocks}
    return {"output": {"message": message}, "stopReason": stop, "usage": USAGE, "metrics": {"latencyMs": 9}, **more}


def block(index: int, start: dict[str, Any] | None, *deltas: dict[str, Any]) -> list[tuple[str, Any]]:
    """The events of one block; one of text does not say that it starts."""
    at = {"contentBlockIndex": index, "p": "abcdefgh"}
    return [
        *([("contentBlockStart", {"start": start, **at})] if start else []),
        *[("contentBlockDelta", {"delta": delta, **at}) for delta in deltas],
        ("contentBlockStop", at),
    ]


def text(index: int, *pieces: str) -> list[tuple[str, Any]]:
    """The events of a block of text."""
    return block(index, None, *[{"text": piece} for piece in pieces])


def call(index: int, id: str, name: str, *pieces: str, **more: Any) -> list[tuple[str, Any]]:
    """The events of a call, its arguments in pieces."""
    start = {"toolUse": {"toolUseId": id, "name": name, **more}}
    return block(index, start, *[{"toolUse": {"input": piece}} for piece in pieces])


def streamed(*blocks: list[tuple[str, Any]], stop: str = "end_turn", **about: Any) -> bytes:
    """A stream of blocks, from its start to its end."""
    return frames(
        ("messageStart", {"role": "assistant"}),
        *[event for told in blocks for event in told],
        ("messageStop", {"stopReason": stop}),
        ("metadata", {"usage": USAGE, "metrics": {"latencyMs": 9}, **about}),
    )


@cache
def _converse() -> Any:
    described = Loader().load_service_model("bedrock-runtime", "service-2")
    return ServiceModel(described).operation_model("Converse").input_shape


def converse_accepts(body: dict[str, Any]) -> str:
    """What is wrong with a body by AWS's own description; nothing if it can be sent."""
    report: str = ParamValidator().validate({"modelId": MODEL, **body}, _converse()).generate_report()
    return report


__all__ = [
    "ADDRESS",
    "MODEL",
    "Pieces",
    "Server",
    "answer",
    "asked",
    "asking",
    "block",
    "call",
    "converse_accepts",
    "cut",
    "facts",
    "frame",
    "frames",
    "heard",
    "streamed",
    "text",
]
