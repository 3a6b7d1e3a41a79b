"""What a client asks a server besides calling tools: resources and prompts."""

from __future__ import annotations

from typing import Any

from .listings import plain_text

_MOST = 500


async def list_resources(client: Any) -> list[dict[str, Any]]:
    """The resources and templates of resources that a server lists, at most 500 of each."""
    found = [_described(one, "uri") for one in await _all(client.list_resources, "resources")]
    found += [
        _described(one, "uri_template") for one in await _all(client.list_resource_templates, "resource_templates")
    ]
    return found


async def list_prompts(client: Any) -> list[Any]:
    """The prompts that a server lists."""
    return await _all(client.list_prompts, "prompts")


async def _all(page_of: Any, field: str) -> list[Any]:
    from mcp.shared.exceptions import MCPError
    from mcp_types import METHOD_NOT_FOUND

    listed: list[Any] = []
    cursor: str | None = None
    while len(listed) < _MOST:
        try:
            page = await page_of(cursor=cursor)
        except MCPError as error:
            if error.code == METHOD_NOT_FOUND:  # a server need not have templates
                break
            raise
        listed += getattr(page, field)
        if not (cursor := page.next_cursor):
            break
    return listed[:_MOST]


def _described(one: Any, field: str) -> dict[str, Any]:
    texts = {"name": one.name, "description": one.description or "", "media_type": one.mime_type or ""}
    return {field: getattr(one, field)} | {key: plain_text(text, 500) for key, text in texts.items() if text}


__all__ = ["list_prompts", "list_resources"]
