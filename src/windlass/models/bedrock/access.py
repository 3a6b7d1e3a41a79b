"""Where Bedrock is, and who asks: by an API key, or by AWS's credentials, which sign each request."""

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
    """What a model needs to reach Bedrock. The session is asked for credentials when the first request is made, and in
    a thread, for they may come over the network; it keeps them fresh."""

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
                remedy = "set AWS_REGION, give the profile of AWS_PROFILE a region, or pass region=… or session=…"
                raise ConfigError(f"model={name!r} has no region: {remedy}")
            self.address = (base_url or _endpoint(self._session, self._region)).rstrip("/")
            if session is None and not self._key and _knowable() and self._session.get_credentials() is None:
                remedy = f"set {KEY} or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile, or pass api_key=…"
                raise ConfigError(f"model={name!r} has no credentials: {remedy} or session=…")
        except BotoCoreError as error:
            raise ConfigError(f"model={name!r} cannot be reached: {error}") from error

    async def headers(self, url: str, content: bytes, more: Mapping[str, str] = {}) -> dict[str, str]:
        """The headers of a request, with which Bedrock knows who asks; `more` are the caller's."""
        headers = {"content-type": "application/json", **more}
        if self._key:
            return {**headers, "authorization": f"Bearer {self._key}"}
        request = AWSRequest("POST", url, headers=headers, data=content)
        SigV4Auth(await self._frozen(), SERVICE, self._region).add_auth(request)
        return dict(request.headers.items())

    async def _frozen(self) -> Any:
        """The credentials of this moment. Those that never change are at hand; others may have to be fetched."""
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
    """Whether missing credentials can be known now: else a service of the machine may still be asked for some."""
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
    """The address as AWS's tools find it, by region and configuration. No credentials are looked for."""
    make = session.create_client if hasattr(session, "create_client") else session.client
    client = make(ENDPOINT, region_name=region, aws_access_key_id="none", aws_secret_access_key="none")
    client.close()
    address: str = client.meta.endpoint_url
    return address


__all__ = ["KEY", "Access"]
