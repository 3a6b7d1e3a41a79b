"""Tools with which a model lists and reads the resources of a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from windlass.messages import ContentPart
from windlass.tools.schema_tools import SchemaTool

if TYPE_CHECKING:
    from windlass import Hooks

    from .sources import Source

_READ_SCHEMA = {"type": "object", "properties": {"uri": {"type": "string"}}, "required": ["uri"]}


def install_resources(registrar: Hooks, server: str, source: Source, timeout: float | None) -> None:
    """Register `SERVER__list_resources` and `SERVER__read_resource`."""

    async def list_resources(arguments: dict[str, Any]) -> list[dict[str, Any]]:
        return await source.resources()

    async def read_resource(arguments: dict[str, Any]) -> list[ContentPart]:
        return list(await source.read(arguments["uri"]))

    listing = SchemaTool(
        list_resources,
        name=f"{server}__list_resources",
        description=f"List the resources of the MCP server {server}.",
        schema={"type": "object", "properties": {}},
        effect="idempotent",
        timeout=timeout,
    )
    reading = SchemaTool(
        read_resource,
        name=f"{server}__read_resource",
        description=f"Read a resource of the MCP server {server}, by its URI.",
        schema=_READ_SCHEMA,
        check=_wrong_uri,
        effect="idempotent",
        timeout=timeout,
    )
    registrar.tool(listing)
    registrar.tool(reading)


def _wrong_uri(arguments: Mapping[str, Any]) -> str | None:
    return None if isinstance(arguments.get("uri"), str) else "give a uri, as a text"


__all__ = ["install_resources"]
