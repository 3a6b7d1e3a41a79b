"""The description of all routes, made from them: OpenAPI 3.1."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import msgspec

from .access import OPEN_PATHS
from .endpoints import Endpoint
from .errors import ErrorView

_REF = "#/components/schemas/{name}"


def describe(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """The OpenAPI document of these endpoints."""
    used = [kind for one in endpoints for kind in (one.body, one.returns, one.query) if kind is not None]
    kinds = list(dict.fromkeys([*used, ErrorView]))
    found, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    schemas = {id(kind): schema for kind, schema in zip(kinds, found, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for one in endpoints:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, schemas, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Windlass", "version": version("windlass"), "description": "Agents over HTTP."},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}],
    }


def _operation(one: Endpoint, schemas: dict[int, Any], components: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if one.returns is not None or not one.streams or one.body is not None:
        content["application/json"] = {"schema": schemas[id(one.returns)] if one.returns is not None else {}}
    if one.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    refused = {"application/json": {"schema": schemas[id(ErrorView)]}}
    operation: dict[str, Any] = {
        "summary": one.summary,
        "operationId": one.handler.__name__ + "_" + one.handler.__module__.rpartition(".")[2],
        "tags": [one.tag],
        "parameters": [*_path_parameters(one.path), *_query_parameters(one, schemas, components)],
        "responses": {
            str(one.status): {"description": "Done", "content": content},
            "default": {"description": "Refused or failed", "content": refused},
        },
    }
    if one.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schemas[id(one.body)]}},
        }
    if one.path in OPEN_PATHS:
        operation["security"] = []
    return operation


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)\}", path)
    ]


def _query_parameters(one: Endpoint, schemas: dict[int, Any], components: dict[str, Any]) -> list[dict[str, Any]]:
    if one.query is None:
        return []
    fields = components[schemas[id(one.query)]["$ref"].rpartition("/")[2]]["properties"]
    return [{"name": name, "in": "query", "schema": schema} for name, schema in fields.items()]
