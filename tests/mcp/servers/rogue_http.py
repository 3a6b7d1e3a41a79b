"""A streamable HTTP server by hand that misbehaves in a call as its argument says. It prints its port."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOW = sys.argv[1]
TOOLS = [{"name": name, "description": "A tool.", "inputSchema": {"type": "object"}} for name in ("go", "fine")]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, body, kind="application/json", status=200, length=None):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def result(self, ident, value):
        self.answer(json.dumps({"jsonrpc": "2.0", "id": ident, "result": value}).encode())

    def flood(self, kind, piece):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        while True:
            self.wfile.write(piece)

    def do_GET(self):
        self.answer(b"", status=405)

    def do_DELETE(self):
        self.answer(b"")

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        method, ident = request.get("method"), request.get("id")
        if method == "initialize":
            info = {"name": "rogue", "version": "0"}
            self.result(ident, {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info})
        elif method == "tools/list":
            self.result(ident, {"tools": TOOLS})
        elif method == "tools/call" and request["params"]["name"] == "fine":
            self.result(ident, {"content": [{"type": "text", "text": "fine"}]})
        elif method == "tools/call":
            self.misbehave(ident)
        else:
            self.answer(b"", status=202)

    def misbehave(self, ident):
        if HOW == "endless_json":
            self.flood("application/json", b"x" * 65536)
        elif HOW == "endless_event":
            self.flood("text/event-stream", b"data: " + b"x" * 65536)
        elif HOW == "endless_comments":
            self.flood("text/event-stream", b": noise\n\n")
        elif HOW == "many_events":  # together more than a message may have
            done = {"jsonrpc": "2.0", "id": ident, "result": {"content": [{"type": "text", "text": "ok"}]}}
            said = {"level": "info", "data": "x" * 9000}
            noise = {"jsonrpc": "2.0", "method": "notifications/message", "params": said}
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("connection", "close")
            self.end_headers()
            for message in [*[noise] * 50, done]:
                self.wfile.write(f"event: message\ndata: {json.dumps(message)}\n".encode())
                self.wfile.flush()
                self.wfile.write(b"\n")
            self.close_connection = True
        elif HOW == "garbage":
            self.answer(b"\xff\xfe{not json")
        elif HOW == "web_page":
            self.answer(b"<html>", "text/html")
        elif HOW == "cut_off":
            self.answer(b'{"jsonrpc": "2.0"', length=1000)
            self.close_connection = True
            self.connection.close()
        elif HOW == "fails":
            self.answer(b"no", status=500)
        elif HOW == "redirects":
            self.send_response(307)
            self.send_header("location", "http://127.0.0.1:9/elsewhere")
            self.send_header("content-length", "0")
            self.end_headers()
        elif HOW == "hangs":
            import time

            time.sleep(600)

    def log_message(self, *given):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
sys.stdout.write(f"{server.server_address[1]}\n")
sys.stdout.flush()
server.serve_forever()
