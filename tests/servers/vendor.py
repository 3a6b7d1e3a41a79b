"""A vendor at the network's edge: a real server for Chat Completions on a loopback port that plays a script.

It keeps nothing: which reply is due follows from the request, so it can be asked again after a kill, or by a fork.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

Reply: TypeAlias = "str | tuple[str, dict[str, Any]]"
"""What the model says, or the tool that it calls with its arguments."""


class Vendor:
    """The server. Reply *n* answers a request whose last user message is followed by *n* replies."""

    def __init__(self, *script: Reply) -> None:
        self.script = script
        self.asked: list[dict[str, Any]] = []
        self.held: int | None = None
        """The number of the reply that is not given: a client that asks for it waits."""
        self.holds = threading.Event()
        """Set when a client waits."""
        vendor = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["content-length"])))
                vendor.asked.append(request)
                body, kind = vendor.answer(request)
                with suppress(ConnectionError):  # the client was killed
                    self.send_response(200)
                    self.send_header("content-type", kind)
                    self.send_header("content-length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *given: object) -> None:
                pass

        self._over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def answer(self, request: dict[str, Any]) -> tuple[bytes, str]:
        """The body of an answer and its type."""
        number = 0
        for message in request["messages"]:
            number = 0 if message["role"] == "user" else number + (message["role"] == "assistant")
        if number == self.held:
            self.holds.set()
            self._over.wait()
        said = self.script[min(number, len(self.script) - 1)]
        head = {"id": "c1", "created": 1, "model": request["model"]}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        message: dict[str, Any] = {"role": "assistant", "content": said}
        finish = "stop"
        if not isinstance(said, str):
            finish, call = "tool_calls", {"name": said[0], "arguments": json.dumps(said[1])}
            calls = [{"index": 0, "id": f"call_{number}", "type": "function", "function": call}]
            message = {"role": "assistant", "content": None, "tool_calls": calls}
        if not request.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": finish}
            whole = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
            return json.dumps(whole).encode(), "application/json"
        chunk = {**head, "object": "chat.completion.chunk"}
        events = [
            {**chunk, "choices": [{"index": 0, "delta": message, "finish_reason": None}]},
            {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
            {**chunk, "choices": [], "usage": usage},
        ]
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        return "".join([*lines, "data: [DONE]\n\n"]).encode(), "text/event-stream"

    @contextmanager
    def serving(self) -> Iterator[Vendor]:
        """Serve until the block ends."""
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            self._server.shutdown()
            self._server.server_close()
            thread.join()
