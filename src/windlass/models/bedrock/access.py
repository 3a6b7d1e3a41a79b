"""The address of Bedrock, and the authentication: an API key, or AWS credentials, which sign each request."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Mapping
from typing import Any

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import BotoCoreError, NoCredentialsError
from botocore.session import Session

from windlass.errors import ConfigError

KEY = "AWS_BEARER_TOKEN_BEDROCK"
SERVICE = "bedrock"
ENDPOINT = "bedrock-runtime"


class Access:
    """The address and credentials of a model. The session fetches credentials at the first request, in a thread,
    because they may come over the network; it keeps them fresh."""

    def __init__(
        self,
        name: str,
        session: Any = None,
        region: str | None = None,
        base_url: str | None = None,
        key: str | None = None,
    ) -> None:
        _check(name, session)
        self._key = key or os.environ.get(KEY)
        self._credentials: Any = None
        if base_url is not None and self._key:
            self.address = base_url.rstrip("/")
            return
        try:
            self._session = session or Session()
            self._region = region or _region(session) or os.environ.get("AWS_REGION") or _region(self._session)
            if self._region is None:
                remedy = "set AWS_REGION, set a region in the profile AWS_PROFILE, or pass region=… or session=…"
                raise ConfigError(f"model={name!r} has no region: {remedy}")
            self.address = (base_url or _endpoint(self._session, self._region)).rstrip("/")
            if session is None and not self._key and _knowable() and self._session.get_credentials() is None:
                remedy = f"set {KEY} or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile, or pass api_key=…"
                raise ConfigError(f"model={name!r} has no credentials: {remedy} or session=…")
        except BotoCoreError as error:
            raise ConfigError(f"model={name!r} cannot be reached: {error}") from error

    async def headers(self, url: str, content: bytes, more: Mapping[str, str] = {}) -> dict[str, str]:
        """The headers of a request, which authenticate it; `more` are the caller's."""
        headers = {"content-type": "application/json", **more}
        if self._key:
            return {**headers, "authorization": f"Bearer {self._key}"}
        request = AWSRequest("POST", url, headers=headers, data=content)
        SigV4Auth(await self._frozen(), SERVICE, self._region).add_auth(request)
        return dict(request.headers.items())

    async def _frozen(self) -> Any:
        """The current credentials. Static ones are available at once; others may have to be fetched."""
        if self._credentials is None:
            self._credentials = await asyncio.to_thread(self._session.get_credentials)
        if self._credentials is None:
            raise NoCredentialsError()
        if type(self._credentials) is Credentials:
            return self._credentials.get_frozen_credentials()
        return await asyncio.to_thread(self._credentials.get_frozen_credentials)


def _check(name: str, session: Any) -> None:
    asked = getattr(session, "get_credentials", None)
    if session is not None and (not callable(asked) or inspect.iscoroutinefunction(asked)):
        kind = type(session).__name__
        raise ConfigError(f"session of {name!r} is a {kind}; pass a botocore.session.Session or a boto3.Session")


def _knowable() -> bool:
    """Whether missing credentials are certain now: otherwise a service of the machine may still provide some."""
    asked = ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
    disabled = os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true"
    return disabled and not any(map(os.environ.get, asked))


def _region(session: Any) -> str | None:
    if session is None:
        return None
    boto3 = hasattr(session, "region_name")
    region: str | None = session.region_name if boto3 else session.get_config_variable("region")
    return region


def _endpoint(session: Any, region: str) -> str:
    """The address as AWS's tools find it, by region and configuration, without a search for credentials."""
    make = session.create_client if hasattr(session, "create_client") else session.client
    client = make(ENDPOINT, region_name=region, aws_access_key_id="none", aws_secret_access_key="none")
    client.close()
    address: str = client.meta.endpoint_url
    return address


__all__ = ["KEY", "Access"]
