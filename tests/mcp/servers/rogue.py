"""An MCP server by hand that misbehaves as its argument says. It speaks the protocol of 2025-06-18."""

import json
import os
import signal
import sys
import time

HOW = sys.argv[1]
FILE = sys.argv[2] if len(sys.argv) > 2 else ""


def send(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def tool(name, description="A tool.", schema=None):
    return {"name": name, "description": description, "inputSchema": schema or {"type": "object"}}


def tools():
    if HOW == "names":
        hidden = "Read\u200b it.\u202e\x1b[31m"
        return [tool("a b/c", hidden), tool("a_b_c"), tool("x" * 100), tool("x" * 101), tool("evil", "y" * 9000)]
    if HOW == "schemas":
        deep = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(a+)+$"}}, "required": ["a"]}
        loop = {"type": "object", "properties": {"a": {"$ref": "#"}}, "allOf": [{"$ref": "#"}, {"$ref": "#"}]}
        return [
            tool("slow_pattern", schema=deep),
            tool("loop", schema=loop),
            tool("bad", schema={"type": "object", "properties": {"a": {"type": 7}}}),
        ]
    if HOW == "changing":
        with open(FILE) as file:
            return [tool(name, description) for name, description in json.load(file).items()]
    return [tool("go"), tool("pid")]


def call(request):
    ident, name = request["id"], request["params"]["name"]
    if name == "pid" or HOW == "changing":
        text = str(os.getpid()) if name == "pid" else f"ran {name}"
        send({"jsonrpc": "2.0", "id": ident, "result": {"content": [{"type": "text", "text": text}]}})
    elif HOW == "hangs":
        time.sleep(600)
    elif HOW == "crashes":
        sys.stderr.write("out of memory\n")
        sys.stderr.flush()
        os._exit(3)
    elif HOW == "garbage":
        sys.stdout.buffer.write(b"starting up...\n\xff\xfe\n{not json}\n[1,2]\n\n")
        send({"jsonrpc": "2.0", "id": ident, "result": {"content": [{"type": "text", "text": "fine"}]}})
    elif HOW == "only_garbage":
        while True:
            sys.stdout.write("noise\n")
    elif HOW == "endless_line":
        while True:
            sys.stdout.write("x" * 65536)
    elif HOW == "huge":
        text = "y" * 3_000_000
        send({"jsonrpc": "2.0", "id": ident, "result": {"content": [{"type": "text", "text": text}]}})
    elif HOW == "floods":
        for number in range(3000):
            data = {"level": "info", "data": f"message {number}"}
            send({"jsonrpc": "2.0", "method": "notifications/message", "params": data})
        send({"jsonrpc": "2.0", "id": ident, "result": {"content": [{"type": "text", "text": "dry"}]}})
    elif HOW == "surrogates":
        send({"jsonrpc": "2.0", "id": ident, "result": {"content": [{"type": "text", "text": "a\ud800b"}]}})
    elif HOW == "unreadable":
        send({"jsonrpc": "2.0", "id": ident, "result": 7, "error": {"code": "x"}})
    elif HOW == "wrong_content":
        send({"jsonrpc": "2.0", "id": ident, "result": {"content": [{"type": "smell", "text": 3}]}})


def serve():
    if HOW == "silent":
        time.sleep(600)
    if HOW == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for line in sys.stdin:
        request = json.loads(line)
        method = request.get("method")
        if method == "initialize":
            capabilities = {"tools": {"listChanged": HOW != "changing"}}
            info = {"protocolVersion": "2025-06-18", "capabilities": capabilities}
            send(
                {"jsonrpc": "2.0", "id": request["id"], "result": {**info, "serverInfo": {"name": "r", "version": "1"}}}
            )
        elif method == "tools/list":
            send({"jsonrpc": "2.0", "id": request["id"], "result": {"tools": tools()}})
        elif method == "tools/call":
            call(request)
        elif "id" in request:
            send({"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32601, "message": "no such method"}})
    while HOW == "stubborn":  # it ignores the end of its input, too
        time.sleep(1)


serve()
