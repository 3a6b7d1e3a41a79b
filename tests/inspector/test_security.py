"""Who may ask the inspector, what it serves, and what a hostile transcript can do: nothing."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from windlass import Agent
from windlass.stores import SQLiteStore
from windlass.testing import ScriptedModel, says


def ask(
    process: Any, path: str, *, method: str = "GET", token: str | None = None, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """One request, with a path that nobody has normalised."""
    connection = http.client.HTTPConnection(urlsplit(process.address).netloc, timeout=20)
    given = {"Authorization": f"Bearer {process.token if token is None else token}"}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    connection.putrequest(method, path, skip_host="Host" in given)
    if body is not None:
        given["Content-Length"] = str(len(body))
    for name, value in given.items():
        connection.putheader(name, value)
    connection.endheaders(body)
    response = connection.getresponse()
    data = response.read()
    connection.close()
    return response.status, {name.lower(): value for name, value in response.getheaders()}, data


@pytest.mark.parametrize("path", ["/api/sessions", "/api/sessions/desk-8841", "/api/events", "/api/nothing"])
def test_data_needs_the_token(inspector: Any, path: str):
    for token in ("", "wrong", inspector.token[:-1], f"{inspector.token}x"):
        assert ask(inspector, path, token=token)[0] == 401


def test_another_host_is_refused_for_the_page_and_for_data(inspector: Any):
    for host in ("evil.example", "127.0.0.1.evil.example", "rebound.attacker.test:80", ""):
        for path in ("/", "/js/main.js", "/api/sessions"):
            assert ask(inspector, path, Host=host)[0] == 421
    assert ask(inspector, "/api/sessions", Host=f"localhost:{urlsplit(inspector.address).port}")[0] == 200


def test_requests_of_other_origins_are_refused(inspector: Any):
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1"):
        assert ask(inspector, "/api/sessions", Origin=origin)[0] == 403
        assert ask(inspector, "/api/answer", method="POST", body=b"{}", Origin=origin)[0] == 403
    assert ask(inspector, "/api/sessions", Origin=inspector.address)[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_written(inspector: Any, method: str):
    for path in ("/api/sessions", "/api/sessions/desk-8841", "/api/answer", "/api/rules", "/"):
        assert ask(inspector, path, method=method, body=b"{}")[0] in (404, 405)


@pytest.mark.parametrize(
    "path",
    [
        "/../pyproject.toml", "/js/../../app.py", "/js/..%2f..%2fapp.py", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd",
        "/js/main.js/../../../app.py", "/..\\..\\app.py", "/js/%00", "/static/index.html", "/.git/config",
    ],
)  # fmt: skip
def test_no_path_leads_out_of_the_page(inspector: Any, path: str):
    status, _, data = ask(inspector, path)
    assert status == 404
    assert b"import" not in data
    assert b"root:" not in data


def test_the_page_and_its_files_come_with_a_strict_policy(inspector: Any):
    for path in ("/", "/index.html", "/js/main.js", "/css/inspector.css", "/mark.svg"):
        status, headers, data = ask(inspector, path, token="")
        policy = headers["content-security-policy"]
        assert status == 200
        assert data
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert "http" not in policy
        assert "frame-ancestors 'none'" in policy
        assert "require-trusted-types-for 'script'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


def test_no_file_of_the_page_makes_html_from_text_or_names_another_server():
    import windlass.inspector

    folder = Path(windlass.inspector.__file__).with_name("static")
    for file in folder.rglob("*.*"):
        text = file.read_text(encoding="utf-8")
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "DOMParser",
        ):
            assert word not in text, (file, word)
        urls = [word for word in text.split() if "://" in word and "www.w3.org" not in word and "sqlite://" not in word]
        assert not urls, (file, urls)


@pytest.mark.parametrize(
    "path",
    [
        "/api/sessions/nope", "/api/sessions/desk-8841/turns/99", "/api/sessions/desk-8841/records/0",
        "/api/sessions/desk-8841/records/9999", "/api/sessions/desk-8841/rows/9999", "/api/sessions/..%2f..%2fetc",
        "/api/sessions/%ff", "/api/sessions/desk-8841/turns/x", "/api/sessions?limit=0", "/api/sessions?nope=1",
        "/api/sessions/desk-8841/records/1?offset=-1", "/api/events?session=nope",
    ],
)  # fmt: skip
def test_what_is_not_there_is_an_error_in_words(inspector: Any, path: str):
    status, _, data = ask(inspector, path)
    assert status in (400, 404)
    assert json.loads(data)["error"]["message"]


def test_an_event_id_that_is_no_number_is_refused(inspector: Any):
    assert ask(inspector, "/api/events?session=desk-8841", Last_Event_ID="1; drop")[0] == 400


async def test_a_message_of_ten_megabytes_is_cut_with_a_way_to_the_rest(tmp_path: Path, started: Callable[..., Any]):
    path, size = tmp_path / "huge.db", 10_000_000
    store = SQLiteStore(path)
    await Agent(ScriptedModel(says("ok")), store=store).run("x" * size, session="huge")
    await store.close()
    process = started(path)
    for place in ("/api/sessions", "/api/sessions/huge", "/api/sessions/huge/turns/1", "/api/digests?id=huge"):
        status, _, data = ask(process, place)
        assert status == 200, place
        assert len(data) < 400_000, place
    number = next(n for n in range(1, 10) if b"TurnStarted" in ask(process, f"/api/sessions/huge/records/{n}")[2])
    got, offset = 0, 0
    while offset is not None and got < 300_000:
        slice_ = json.loads(ask(process, f"/api/sessions/huge/records/{number}?offset={offset}")[2])
        assert len(slice_["text"]) <= 70_000
        got, offset = got + len(slice_["text"]), slice_["next"]
    assert slice_["total"] > size
    assert got >= 300_000


def talk(process: Any, request: bytes) -> bytes:
    """What the server answers to these bytes, until it has answered once."""
    with socket.create_connection(("127.0.0.1", urlsplit(process.address).port), timeout=20) as connection:
        with suppress(OSError):  # it may hang up on what is too large
            connection.sendall(request)
        answer = b""
        with suppress(OSError):
            while b"\r\n\r\n" not in answer and (more := connection.recv(65536)):
                answer += more
    return answer


def head_of(process: Any, *lines: str) -> bytes:
    given = [line.format(token=process.token, own=urlsplit(process.address).netloc) for line in lines]
    return "\r\n".join([*given, "", ""]).encode("latin-1")


OWN, TOKEN = "Host: {own}", "Authorization: Bearer {token}"


@pytest.mark.parametrize(
    "lines",
    [
        ["GET /api/sessions HTTP/1.1", "Host: evil.example", OWN, TOKEN],
        ["GET /api/sessions HTTP/1.1", OWN, "Host: evil.example", TOKEN],
        ["GET /api/sessions HTTP/1.1", OWN, "Authorization: Bearer wrong", TOKEN],
        ["GET /api/sessions HTTP/1.1", OWN, TOKEN, "Origin: http://{own}", "Origin: null"],
        ["GET /api/sessions HTTP/1.1", TOKEN],
        ["GET /api/sessions?token={token} HTTP/1.1", OWN],
        ["GET /api/sessions HTTP/1.1", OWN, "Cookie: token={token}"],
        ["GET /api/sessions HTTP/1.1", OWN, "Authorization: Basic {token}"],
        ["GET /api/sessions HTTP/1.1", "Host: localhost.", TOKEN],
        ["GET /api/sessions HTTP/1.1", "Host: 0.0.0.0", TOKEN],
        ["OPTIONS /api/sessions HTTP/1.1", OWN, "Origin: https://evil.example", "Access-Control-Request-Method: POST"],
        ["OPTIONS /api/sessions HTTP/1.1", OWN, "Origin: http://{own}", "Access-Control-Request-Method: POST"],
        ["HEAD /api/events HTTP/1.1", OWN, TOKEN],
        ["POST /api/whatif/run HTTP/1.1", OWN, TOKEN, "Content-Length: 2", "Content-Length: 20"],
        ["POST /api/whatif/run HTTP/1.1", OWN, TOKEN, "Content-Type: application/json", "Content-Length: 99999999"],
        ["GET /api/events HTTP/1.1", OWN, TOKEN, "Upgrade: websocket", "Connection: Upgrade",
         "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13"],
        [f"GET /{'a' * 200_000} HTTP/1.1", OWN, TOKEN],
        ["GET /api/sessions HTTP/1.1", OWN, TOKEN, f"X: {'y' * 200_000}"],
        ["GET /api/sessions HTTP/1.1", OWN, TOKEN, *[f"X{n}: y" for n in range(20_000)]],
    ],
)  # fmt: skip
def test_a_request_that_can_mean_two_things_or_is_too_large_is_refused(inspector: Any, lines: list[str]):
    answer = talk(inspector, head_of(inspector, *lines))
    assert answer.startswith(b"HTTP/1.1 4") or not answer, answer[:200]
    assert b"desk-8841" not in answer
    assert b"access-control-allow" not in answer.lower()
    assert ask(inspector, "/api/sessions?limit=1")[0] == 200


def test_answers_and_errors_are_not_kept_and_not_taken_for_something_else(inspector: Any):
    for path, token in (("/api/sessions", None), ("/api/nothing", None), ("/api/sessions", "wrong")):
        _, headers, _ = ask(inspector, path, token=token)
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["content-type"] == "application/json"
        assert "set-cookie" not in headers


def test_streams_are_bounded_and_end_with_their_readers(started: Callable[..., Any], database: Path):
    process = started(database)
    request = head_of(process, "GET /api/events HTTP/1.1", OWN, TOKEN)
    open_now: list[socket.socket] = []
    answer = b"HTTP/1.1 200"
    while answer.startswith(b"HTTP/1.1 200") and len(open_now) < 300:
        open_now.append(socket.create_connection(("127.0.0.1", urlsplit(process.address).port), timeout=20))
        open_now[-1].sendall(request)
        answer = open_now[-1].recv(65536)
    assert answer.startswith(b"HTTP/1.1 503")
    assert ask(process, "/api/sessions")[0] == 200
    for one in open_now:
        one.close()
    until = time.monotonic() + 20
    while not talk(process, request).startswith(b"HTTP/1.1 200"):
        assert time.monotonic() < until


def test_a_script_that_gets_into_the_page_does_not_run(inspector: Any, opened: Callable[..., Any]):
    one = opened(inspector)
    page = one.page
    page.evaluate(
        """() => {
            const add = (tag, props) => document.body.append(Object.assign(document.createElement(tag), props));
            for (const it of [
                () => add("script", { textContent: "window.owned = 1" }),
                () => add("img", { src: "https://evil.example/x" }),
                () => add("script", { src: "data:text/javascript,window.owned=2" }),
                () => { document.body.innerHTML += "<img src=x onerror='window.owned=3'>"; },
                () => document.body.setAttribute("onclick", "window.owned = 4"), () => document.body.click(),
                () => add("iframe", { srcdoc: "<script>parent.owned = 5</script>" }),
                () => add("style", { textContent: "*{}" }),
                () => { add("a", { href: "javascript:window.owned=6", id: "lure" }); },
                () => document.getElementById("lure").click(),
            ]) try { it(); } catch { /* trusted types */ }
        }"""
    )
    page.evaluate("fetch('https://evil.example/').catch(() => {})")
    page.evaluate("fetch('data:text/plain,x').catch(() => {})")
    with suppress(Exception):
        page.evaluate("setTimeout('window.owned = 7', 0)")
    page.wait_for_timeout(200)
    assert page.evaluate("window.owned") is None
    assert one.problems
    assert all("Security Policy" in text or "Trusted" in text for text in one.problems), one.problems
    one.problems.clear()


def test_a_page_of_another_origin_reads_and_writes_nothing(inspector: Any, tmp_path: Path, browser: Any):
    (tmp_path / "evil.html").write_text("<!doctype html><title>evil</title>")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Quiet) as server:
        server.folder = str(tmp_path)  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{server.server_port}/evil.html")
        tried = page.evaluate(
            """async ([address, token]) => {
                const said = async (options) => {
                    try { const it = await fetch(`${address}/api/${options.path}`, options); return it.type; }
                    catch (error) { return error.name; }
                };
                const authorization = `Bearer ${token}`, body = '{"off":["refund_limit"]}';
                return [
                    await said({ path: "sessions", headers: { authorization } }),
                    await said({ path: "sessions", mode: "no-cors" }),
                    await said({
                        path: "whatif/run", method: "POST", body,
                        headers: { authorization, "content-type": "application/json" },
                    }),
                    await said({ path: "whatif/run", method: "POST", body, mode: "no-cors" }),
                ];
            }""",
            [inspector.address, inspector.token],
        )
        framed = page.evaluate(
            """(address) => new Promise((done) => {
                const seen = () => { try { return frame.contentDocument?.title ?? ""; } catch { return ""; } };
                const frame = Object.assign(document.createElement("iframe"), { src: address });
                frame.onload = () => done(seen());
                document.body.append(frame);
            })""",
            inspector.address,
        )
        page.close()
        server.shutdown()
    assert tried[0] == tried[2] == "TypeError"
    assert set(tried) <= {"TypeError", "opaque"}
    assert framed == ""


class _Quiet(SimpleHTTPRequestHandler):
    def __init__(self, request: Any, address: Any, server: Any) -> None:
        super().__init__(request, address, server, directory=server.folder)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""
