"""One model in one event loop after another."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import weakref
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2
import pytest
from tests.checks import freeze_garbage

from windlass.messages import TextPart
from windlass.models import open_model
from windlass.testing.scenes import said

from .serving import asking
from .wires import ANTHROPIC, BEDROCK, CHAT, GOOGLE, RESPONSES, Vendor

NAMES = [
    ("openai", CHAT),
    ("openai-responses", RESPONSES),
    ("anthropic", ANTHROPIC),
    ("google", GOOGLE),
    ("bedrock", BEDROCK),
]


def answering(vendor: Vendor) -> type[BaseHTTPRequestHandler]:
    """Says "Hi" as a vendor does, and keeps the connection open."""
    body = json.dumps(vendor.whole(said(TextPart("Hi")))).encode()

    class Answering(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    return Answering


def clients() -> weakref.WeakSet[httpx2.AsyncClient]:
    """The HTTP clients that there are."""
    gc.collect()
    return weakref.WeakSet(one for one in gc.get_objects() if issubclass(type(one), httpx2.AsyncClient))


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize(("name", "vendor"), NAMES)
def test_a_model_has_a_client_for_the_loop_that_runs_and_none_for_those_before(
    name: str, vendor: Vendor, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection of the first loop is still open when that ends, and of no use to the second."""
    freeze_garbage()
    others = clients()
    with ThreadingHTTPServer(("127.0.0.1", 0), answering(vendor)) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        models = [open_model(f"{name}:m", api_key="k", base_url=f"http://127.0.0.1:{server.server_port}")]

        async def ask() -> str:
            text = (await models[0].reply(asking())).text
            gc.collect()
            await asyncio.sleep(0)
            return text

        assert [asyncio.run(ask()) for _ in range(4)] == ["Hi"] * 4
        assert len(clients() - others) <= 1
        models.clear()
        assert clients() <= others
        server.shutdown()
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize(("name", "vendor"), NAMES)
async def test_a_model_that_nobody_closes_is_closed_when_it_is_gone(name: str, vendor: Vendor) -> None:
    freeze_garbage()
    others = clients()
    with ThreadingHTTPServer(("127.0.0.1", 0), answering(vendor)) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        models = [open_model(f"{name}:m", api_key="k", base_url=f"http://127.0.0.1:{server.server_port}")]
        assert (await models[0].reply(asking())).text == "Hi"
        mine = [weakref.ref(one) for one in clients() if one not in others]
        assert len(mine) == 1
        models.clear()
        for _ in range(100):
            await asyncio.sleep(0)
        gc.collect()
        assert mine[0]() is None
        await asyncio.to_thread(server.shutdown)
