"""Who may ask the inspector, what it serves, and what a hostile transcript can do: nothing."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
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
