"""Posts JSON to a URL, signed, for capabilities that tell the outside."""

from __future__ import annotations

import hmac
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, NamedTuple

from windlass.errors import ConfigError

SIGNATURE = "X-Windlass-Signature"
_MAX_ANSWER = 65_536


class Response(NamedTuple):
    """The body of a response, and its signature."""

    body: bytes
    signature: str


class Poster(NamedTuple):
    """Where to post, with which `secret` to sign, which `headers` to send along, and how long to wait."""

    url: str
    secret: str | None = None
    headers: Mapping[str, str] = {}
    timeout: float = 10.0

    def post(self, value: Any, key: str) -> Response:
        """Post a value; `key` tells which posts are the same. Any answer but 2xx raises `OSError`."""
        body = json.dumps(value).encode()
        headers = {"Content-Type": "application/json", "Idempotency-Key": key, **self.headers}
        if self.secret is not None:
            headers[SIGNATURE] = signature_of(body, self.secret)
        request = urllib.request.Request(self.url, body, headers, method="POST")
        try:
            with _OPENER.open(request, timeout=self.timeout) as response:
                return Response(response.read(_MAX_ANSWER), response.headers.get(SIGNATURE, ""))
        except urllib.error.HTTPError as error:
            error.close()
            raise OSError(f"the webhook answered {error.code}") from None

    def has_signed(self, response: Response) -> bool:
        """Whether the response is signed with the secret; always, if there is no secret."""
        if self.secret is None:
            return True
        return hmac.compare_digest(response.signature, signature_of(response.body, self.secret))


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """What is posted goes to the URL that was named, and nowhere else."""

    def redirect_request(self, *args: Any, **options: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)


def signature_of(body: bytes, secret: str) -> str:
    """The value of the header `X-Windlass-Signature`: the HMAC of a `body` with a `secret`."""
    return "sha256=" + hmac.digest(secret.encode(), body, "sha256").hex()


def check_url(owner: str, name: str, url: object) -> str:
    """Raise unless it is a URL to post to."""
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise ConfigError(f"{owner}({name}={url!r}) must be an http(s) URL")
    return url
