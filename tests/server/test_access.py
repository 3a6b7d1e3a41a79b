"""Who may use the server, and what it takes from them."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from windlass import Agent
from windlass.errors import ConfigError
from windlass.server import Server
from windlass.testing import ScriptedModel, says

TURN = {"message": "hi"}


def agent(name: str = "ann") -> Agent:
    return Agent(ScriptedModel(says("hello")), name=name)


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer wrong", "Basic a-token-of-24-characters", "Bearer ä"])
async def test_a_wrong_token_is_refused_everywhere_but_at_the_health_check(live, given):
    async with live(agent()) as server:
        headers = {"authorization": given.encode()}
        for method, path in (("GET", "/agents"), ("POST", "/agents/ann/turns"), ("GET", "/nowhere")):
            refused = await server.client.request(method, path, headers=headers, json=TURN)
            assert (refused.status_code, refused.json()["error"]["type"]) == (401, "wrong_token")
            assert refused.headers["www-authenticate"] == "Bearer"
        assert (await server.client.get("/health", headers=headers)).json() == {"status": "ok"}
        assert await server.server.agents[0].store.sessions() == []


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "[", "", "localhost@evil"]
)
async def test_a_host_that_is_not_this_server_is_refused(live, host):
    async with live(agent()) as server:
        for path in ("/agents", "/health"):
            refused = await server.client.get(path, headers={"host": host})
            assert refused.status_code in (400, 421)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8400", "[::1]:99"])
async def test_the_names_of_loopback_are_this_server(live, host):
    async with live(agent()) as server:
        assert (await server.client.get("/agents", headers={"host": host})).status_code == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://localhost"])
async def test_a_page_of_another_origin_can_neither_write_nor_read(live, origin):
    async with live(agent()) as server:
        for method in ("POST", "GET", "OPTIONS"):
            refused = await server.client.request(method, "/agents/ann/turns", headers={"origin": origin})
            assert refused.status_code == 403
            assert "access-control-allow-origin" not in refused.headers
        own = await server.client.post("/agents/ann/turns", json=TURN, headers={"origin": server.address})
        assert own.status_code == 200
        assert "access-control-allow-origin" not in own.headers


async def test_an_origin_that_is_named_may_use_the_server_with_the_token(live):
    page = "https://chat.example"
    async with live(agent(), origins=[page]) as server:
        asks = {"origin": page, "access-control-request-method": "POST", "authorization": ""}
        asked = await server.client.options("/agents/ann/turns", headers=asks)
        assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (200, page)
        done = await server.client.post("/agents/ann/turns", json=TURN, headers={"origin": page})
        assert (done.status_code, done.headers["access-control-allow-origin"]) == (200, page)
        bare = await server.client.post("/agents/ann/turns", json=TURN, headers={"origin": page, "authorization": ""})
        assert bare.status_code == 401


async def test_a_body_that_is_too_large_is_refused_whether_or_not_it_says_so(live):
    async with live(agent()) as server:
        big = b'{"message": "' + b"x" * 10_000_000 + b'"}'

        async def chunks():
            for start in range(0, len(big), 65536):
                yield big[start : start + 65536]

        for content in (big, chunks()):
            try:
                refused = await server.client.post(
                    "/agents/ann/turns", content=content, headers={"content-type": "application/json"}
                )
            except httpx2.TransportError:  # the server closed the connection while the client was writing
                continue
            assert (refused.status_code, refused.json()["error"]["type"]) == (413, "body_too_large")
        assert await server.server.agents[0].store.sessions() == []


async def test_a_body_that_does_not_come_is_given_up(live):
    async with live(agent(), body_timeout=0.2) as server:
        host, port = server.address.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /agents/ann/turns HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a-token-of-24-characters\r\n"
            b'Content-Type: application/json\r\nContent-Length: 30\r\n\r\n{"mess'
        )
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 408")
        writer.close()


async def test_a_form_is_not_taken_for_json(live):
    async with live(agent()) as server:
        for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
            refused = await server.client.post(
                "/agents/ann/turns", content=b'{"message": "hi"}', headers={"content-type": kind}
            )
            assert refused.status_code == 415


@pytest.mark.parametrize(
    "path",
    ["/agents/ann/sessions/..%2F..%2Fetc%2Fpasswd", "/../../etc/passwd", "/agents/../../x", "/agents/ann/sessions/%00",
     "/agents/ann/sessions/" + "x" * 600, "/agents/ann/sessions/%ff", "/agents/ann/sessions/s/", "/agents/", "//",
     "/agents/ann/sessions/%ed%a0%80"],
)  # fmt: skip
async def test_odd_paths_are_refused_without_a_redirect(live, path):
    async with live(agent()) as server:
        host, port = server.address.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        writer.write(f"{head}Authorization: Bearer a-token-of-24-characters\r\n\r\n".encode())
        answer = await reader.read()
        assert answer.split()[1] in (b"400", b"404"), answer
        writer.close()


async def test_an_id_of_a_sub_agents_session_cannot_open_a_turn(live):
    async with live(agent()) as server:
        refused = await server.client.post("/agents/ann/turns", json={**TURN, "session": "a//1/1"})
        assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request")


async def test_an_error_of_the_server_says_nothing_about_its_inside(live, caplog):
    def scope(session: str):
        raise RuntimeError("the password is 1234")

    async with live(agent(), scope=scope) as server:
        failed = await server.client.post("/agents/ann/turns", json=TURN)
        assert failed.status_code == 500
        assert "1234" not in failed.text
        assert "Traceback" not in failed.text
    assert "the password is 1234" in caplog.text


@pytest.mark.parametrize(
    ("options", "words"),
    [({"token": "short"}, "at least 16"), ({"token": "has a space in the middle"}, "no spaces"),
     ({"hosts": "localhost"}, "hosts must be a list"), ({"origins": ["*"]}, "is not an origin"),
     ({"max_body": 0}, "above 0"), ({"drain": -1.0}, "not be negative")],
)  # fmt: skip
def test_wrong_options_are_refused_at_once(options, words):
    with pytest.raises(ConfigError, match=words):
        Server([agent()], **{"token": "a-token-of-24-characters", **options})


def test_agents_need_names_that_differ():
    with pytest.raises(ConfigError, match="two agents have the name 'ann'"):
        Server([agent(), agent()], token="a-token-of-24-characters")
    with pytest.raises(ConfigError, match="at least one agent"):
        Server([], token="a-token-of-24-characters")
