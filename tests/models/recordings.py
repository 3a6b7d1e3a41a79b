"""The recordings of ../shared/wire as exchanges of a cassette."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from windlass.testing import Exchange

from .serving import Pieces, cut

WIRE = Path(os.environ.get("WINDLASS_WIRE") or Path(__file__).resolve().parents[3] / "shared" / "wire")


def recordings(folder: str) -> list[Path]:
    """The files of a vendor; none where the folder is missing, unless `WINDLASS_REQUIRE_WIRE` says it must be there."""
    found = sorted((WIRE / folder).glob("*.yaml"))
    assert found or not os.environ.get("WINDLASS_REQUIRE_WIRE"), f"the recordings of {folder} are missing"
    return found


def pairs(folder: str) -> list[Any]:
    """A case for each pair of a request and its answer of a vendor: path, place, pair, what is expected."""
    found = [
        pytest.param(path, at, pair, facts, id=f"{path.stem}-{at}")
        for path in recordings(folder)
        for at, (pair, facts) in enumerate(zip(interactions(path), expected(path), strict=True), 1)
    ]
    missing = pytest.mark.skip(reason=f"no recordings at {WIRE}")
    return found or [pytest.param(None, 0, None, None, id="none", marks=missing)]


def interactions(path: Path) -> list[Any]:
    """The pairs of a file."""
    yaml = pytest.importorskip("yaml")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return list(yaml.load(path.read_text(encoding="utf-8"), Loader=loader)["interactions"])


def is_converse(pair: dict[str, Any]) -> bool:
    """Whether a pair speaks Bedrock's Converse."""
    return urlsplit(pair["request"]["uri"]).path.endswith(("/converse", "/converse-stream"))


def asked_of(request: dict[str, Any]) -> Any:
    """The JSON of a recorded request."""
    return request["parsed_body"] if "parsed_body" in request else json.loads(request["body"])


def served(response: dict[str, Any], seed: int) -> httpx2.Response:
    """A recorded response, cut at random offsets."""
    status, headers, body = _recorded(response)
    text = body if isinstance(body, str | bytes) else json.dumps(body)
    whole = text.encode() if isinstance(text, str) else text
    return httpx2.Response(status, headers=headers, stream=Pieces(cut(whole, seed)))


def exchanges(path: Path, *, any_body: bool = True) -> list[Exchange]:
    """The exchanges of a file; they fit any body unless told otherwise."""
    return [_exchange(pair, any_body) for pair in interactions(path)]


def expected(path: Path) -> list[dict[str, Any]]:
    """What EXPECTED.json says of the pairs of a file."""
    facts = json.loads((WIRE / "EXPECTED.json").read_text(encoding="utf-8"))
    return list(facts[f"{path.parent.name}/{path.name}"]["facts"])


def _exchange(pair: dict[str, Any], any_body: bool) -> Exchange:
    request = pair["request"]
    status, headers, answer = _recorded(pair["response"])
    sent = {} if any_body or "parsed_body" not in request else {"sent": request["parsed_body"]}
    return Exchange.of(request["uri"], answer, status=status, headers=headers, method=request["method"], **sent)


def _recorded(response: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
    """The status, the headers without those that say how the body was sent, and the body."""
    dropped = ("content-encoding", "content-length", "transfer-encoding")
    headers = {name: values[0] for name, values in response["headers"].items() if name.lower() not in dropped}
    body = response["parsed_body"] if "parsed_body" in response else response["body"]["string"]
    return response["status"]["code"], headers, body
