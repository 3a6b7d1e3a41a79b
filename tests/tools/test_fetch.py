"""fetch: only listed hosts, only public addresses, with limits."""

from __future__ import annotations

import asyncio
import socket

import pytest

from windlass.errors import ConfigError
from windlass.tools import Workspace, fetching
from windlass.tools.fetching import html_text, is_public

from .plays import use

PAGE = b"<html><head><title>T</title><style>x{}</style></head><body><h1>Hello</h1><script>no()</script><p>a  b</body>"


@pytest.fixture
async def site(monkeypatch):
    """A server, and names that lead to it as if it had a public address. Returns the port and what it was asked."""
    asked: list[str] = []

    async def answer(reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        asked.append(head)
        path = head.split()[1]
        kind, body, status = "text/html", PAGE, "200 OK"
        extra = ""
        if path.startswith("/to/"):
            status, extra = "302 Found", f"Location: {path[4:].replace('|', '/')}\r\n"
        elif path == "/loop":
            status, extra = "302 Found", "Location: /loop\r\n"
        elif path == "/big":
            body = b"x" * 300_000
        elif path == "/zip":
            extra = "Content-Encoding: gzip\r\n"
        elif path == "/none":
            status = "404 Not Found"
        elif path == "/text":
            kind, body = "text/plain; charset=latin-1", b"caf\xe9"
        lines = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{extra}"
        writer.write(f"{lines}Connection: close\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    loop = asyncio.get_running_loop()
    names = {"public.test": "127.0.0.1", "private.test": "10.0.0.1", "metadata.test": "169.254.169.254"}

    async def resolve(host, port, **options):
        address = names.get(host, host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(loop, "getaddrinfo", resolve)
    monkeypatch.setattr(fetching, "is_public", lambda address: address == "127.0.0.1" or is_public(address))
    yield port, asked
    server.close()
    await server.wait_closed()


def workspace(root, *hosts):
    return Workspace(root, shell=False, fetch=hosts)


async def test_a_page_is_fetched_as_text_from_the_checked_address(root, site):
    port, asked = site
    found = await use(workspace(root, f"public.test:{port}"), "fetch", url=f"http://public.test:{port}/a?b=c#d")
    assert found.text == "Hello\n\na b"
    assert asked[0].startswith("GET /a?b=c HTTP/1.1")
    assert f"public.test:{port}" in asked[0]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/none", "404"),
        ("/zip", "compressed"),
        ("/big", "larger than"),
        ("/to/http:||private.test|", "private address 10.0.0.1"),
        ("/to/http:||metadata.test|", "private address 169.254.169.254"),
        ("/to/http:||other.test|", "not one of the hosts"),
        ("/to/file:||etc|passwd", "is not an address that can be fetched"),
        ("/loop", "more than 5 redirects"),
    ],
)
async def test_what_a_server_answers_is_checked(root, site, monkeypatch, path, words):
    monkeypatch.setattr(fetching, "MAX_BYTES", 100_000)
    port, _ = site
    hosts = (f"public.test:{port}", "private.test", "metadata.test")
    found = await use(workspace(root, *hosts), "fetch", url=f"http://public.test:{port}{path}")
    assert found.status == "error"
    assert words in found.text


async def test_redirects_are_followed(root, site):
    port, asked = site
    web = workspace(root, f"public.test:{port}")
    assert (await use(web, "fetch", url=f"http://public.test:{port}/to/|text")).text == "café"
    assert len(asked) == 2


@pytest.mark.parametrize(
    "url",
    [
        "http://other.test/",
        "http://public.test/",
        "ftp://public.test/",
        "http://user:pw@private.test/",
        "http://private.test\\@public.test/",
        "http://[::1]/",
        "http://127.0.0.1/",
        "file:///etc/passwd",
        "http://private.test/",
        "nonsense",
        "http://private.test:99999/",
    ],
)
async def test_other_addresses_are_refused_before_anything_is_sent(root, site, url):
    port, asked = site
    found = await use(workspace(root, f"public.test:{port}", "private.test"), "fetch", url=url)
    assert found.status == "error"
    assert not asked


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
        "255.255.255.255", "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1",
        "2002:7f00:1::", "2001:0:1::", "ff02::1", "240.0.0.1", "text",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public(address):
    assert not is_public(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "8.8.8.8", "2606:4700::1", "::ffff:8.8.8.8"])
def test_addresses_that_are_public(address):
    assert is_public(address)


async def test_it_is_off_unless_hosts_are_listed(root):
    found = await use(Workspace(root, shell=False), "fetch", url="http://public.test/")
    assert found.status == "error"
    assert "public.test" not in found.text


@pytest.mark.parametrize("hosts", ["docs.python.org", [1], ["https://docs.python.org"], ["a b"]])
def test_invalid_hosts_are_refused(root, hosts):
    with pytest.raises(ConfigError, match="fetch"):
        Workspace(root, fetch=hosts)


def test_broken_html_is_read_as_far_as_it_goes():
    assert html_text("<p>a<script>b<p>c") == "a"
    assert html_text("<ul><li>x<li>y</ul> &lt;z&gt;") == "- x\n- y\n<z>"
