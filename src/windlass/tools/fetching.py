"""The tool that fetches web pages: from listed hosts only, and never from private addresses."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Sequence
from fnmatch import fnmatchcase
from html.parser import HTMLParser
from importlib.util import find_spec
from typing import Any
from urllib.parse import urljoin, urlsplit

from windlass.errors import ConfigError, ToolError
from windlass.turns import Turn

from .definitions import tool

MAX_BYTES = 2_000_000
"""Larger pages are refused."""
MAX_TEXT = 60_000
"""One call shows at most so many characters."""
MAX_REDIRECTS = 5
SECONDS = 30.0
_PORTS = {"http": 80, "https": 443}
_EMBEDDING = [ipaddress.ip_network(text) for text in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")]
"""Addresses that lead to others, which may be private."""


class FetchTool:
    """The tool `fetch`, for hosts that match one of some patterns."""

    def __init__(self, hosts: Sequence[str]) -> None:
        given: Sequence[object] = hosts
        for host in given:
            if not isinstance(host, str) or not re.fullmatch(r"[\w.*-]+(?::\d+)?|\*", host):
                raise ConfigError(f"Workspace(fetch={host!r}): a host is a name such as 'docs.python.org' or '*.org'")
        if find_spec("httpx2") is None:
            raise ConfigError("fetch needs the extra tools: pip install 'windlass[tools]'")
        self._hosts = tuple([host.lower() for host in hosts])

    @tool(effect="idempotent", read_only=True, open_world=True)
    async def fetch(self, url: str, turn: Turn[Any], offset: int = 0) -> str:
        """Fetch a web page as text.

        Args:
            url: the address, with http:// or https://
            offset: the first character to show
        """
        try:
            async with turn.timeout(SECONDS):
                text = await self._text(url)
        except TimeoutError:
            raise ToolError(f"{url!r} took longer than {SECONDS:g} seconds") from None
        if offset < 0 or (offset and offset >= len(text)):
            raise ToolError(f"the page has {len(text)} characters; offset={offset} is not one of them")
        end = offset + MAX_TEXT
        rest = f"\n[{len(text) - end:,} more characters; go on with offset={end}]" if len(text) > end else ""
        return f"{text[offset:end]}{rest}" or "[the page is empty]"

    async def _text(self, url: str) -> str:
        """The text of a page. Each redirect is checked like the first address."""
        import httpx2

        async with httpx2.AsyncClient(trust_env=False, follow_redirects=False, timeout=SECONDS) as client:
            for _ in range(MAX_REDIRECTS + 1):
                host, address, headers = await self._checked(url)
                parts = urlsplit(url)
                port = "" if parts.port is None else f":{parts.port}"
                bare = f"[{address}]" if ":" in address else address
                direct = parts._replace(netloc=f"{bare}{port}", fragment="").geturl()
                try:
                    found = await _get(client, direct, headers, host)
                except httpx2.HTTPError as error:
                    raise ToolError(f"{url!r} cannot be fetched: {str(error) or type(error).__name__}") from None
                if isinstance(found, str):
                    url = urljoin(url, found)
                    continue
                return _decoded(*found)
        raise ToolError(f"{url!r} has more than {MAX_REDIRECTS} redirects")

    async def _checked(self, url: str) -> tuple[str, str, dict[str, str]]:
        """The host of an address, a public address that it has, and the headers of the request."""
        try:
            parts = urlsplit(url)
            host, port = (parts.hostname or "").rstrip("."), parts.port
        except ValueError as error:
            raise ToolError(f"{url!r} is not an address: {error}") from None
        if parts.scheme not in _PORTS or not host or parts.username is not None or "\\" in url:
            raise ToolError(f"{url!r} is not an address that can be fetched; use https://host/path")
        full = host if port in (None, _PORTS[parts.scheme]) else f"{host}:{port}"
        if not any(fnmatchcase(full, pattern) for pattern in self._hosts):
            raise ToolError(f"{full!r} is not one of the hosts that may be fetched: {', '.join(self._hosts)}")
        address = await _public_address(host, port or _PORTS[parts.scheme])
        headers = {"Host": parts.netloc, "Accept-Encoding": "identity", "User-Agent": "windlass"}
        return host, address, headers


async def _public_address(host: str, port: int) -> str:
    """An address of a host. All of them must be public; the connection is made to this one."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ToolError(f"{host!r} is not known: {error}") from None
    addresses = [str(entry[4][0]) for entry in found]
    for address in addresses:
        if not is_public(address):
            raise ToolError(f"{host!r} has the private address {address}, which is not fetched")
    if not addresses:
        raise ToolError(f"{host!r} has no address")
    return addresses[0]


def is_public(text: str) -> bool:
    """Whether an address is on the public internet: not private, of this machine, of its network, or of a cloud's."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(str(address.ipv4_mapped))
        if any(address in network for network in _EMBEDDING):
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


async def _get(client: Any, url: str, headers: dict[str, str], host: str) -> str | tuple[bytes, str]:
    """The target of a redirect, or the content of a page and its type."""
    request = client.build_request("GET", url, headers=headers, extensions={"sni_hostname": host})
    response = await client.send(request, stream=True)
    try:
        if response.is_redirect:
            return str(response.headers["location"])
        if response.status_code >= 400:
            raise ToolError(f"the server answered {response.status_code} {response.reason_phrase}")
        if response.headers.get("content-encoding", "identity") != "identity":
            raise ToolError("the page is compressed, although that was not asked for")
        data = bytearray()
        async for chunk in response.aiter_raw():
            data += chunk
            if len(data) > MAX_BYTES:
                raise ToolError(f"the page is larger than {MAX_BYTES:,} bytes")
        return bytes(data), str(response.headers.get("content-type", ""))
    finally:
        await response.aclose()


def _decoded(data: bytes, kind: str) -> str:
    """The text of a page. HTML becomes plain text."""
    match = re.search(r"charset=[\"']?([\w-]+)", kind)
    try:
        text = data.decode(match[1] if match else "utf-8", "replace")
    except LookupError:
        text = data.decode("utf-8", "replace")
    if "html" in kind or re.match(r"\s*<(?:!doctype html|html)", text, re.IGNORECASE):
        return html_text(text)
    if "\0" in text[:8192]:
        raise ToolError(f"the page is not text but {kind or 'binary'}")
    return text


class _Reader(HTMLParser):
    """Collects the text of a page."""

    _SILENT = frozenset({"script", "style", "noscript", "template", "svg", "head"})
    _BLOCKS = frozenset(
        {
            "p", "div", "br", "li", "ul", "ol", "table", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "section",
            "article", "header", "footer", "blockquote", "hr", "dt", "dd",
        }
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._silent: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self._SILENT:
            self._silent.append(tag)
        if tag == "body":
            self._silent.clear()
        if tag in self._BLOCKS:
            self.parts.append("\n- " if tag == "li" else "\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._silent:
            del self._silent[self._silent.index(tag) :]
        elif tag in self._BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.parts.append(data)


def html_text(page: str) -> str:
    """The text of an HTML page, without scripts and styles."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    lines = [" ".join(line.split()) for line in "".join(reader.parts).splitlines()]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
