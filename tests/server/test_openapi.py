"""The OpenAPI document says what the server does."""

from __future__ import annotations

import json
from typing import Any

from jsonschema import Draft202012Validator

from windlass import Agent
from windlass.server.app import ENDPOINTS
from windlass.testing import ScriptedModel, says


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [found for inner in value.values() for found in references(inner)]
    return [found for inner in value for found in references(inner)] if isinstance(value, list) else []


async def test_every_route_is_in_the_document_and_its_schemas_are_valid(live):
    async with live(Agent(ScriptedModel(says("hello")), name="ann")) as server:
        document = (await server.client.get("/openapi.json")).json()
        routes = server.server._app._app.routes
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert described == {(method, route.path) for route in routes for method in route.methods if method != "HEAD"}
    assert len(described) == len(ENDPOINTS)
    schemas = document["components"]["schemas"]
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    for reference in references(document):
        assert reference.rpartition("/")[2] in schemas
    names = [one["operationId"] for methods in document["paths"].values() for one in methods.values()]
    assert len(set(names)) == len(names)
    for path, methods in document["paths"].items():
        for one in methods.values():
            given = [parameter["name"] for parameter in one["parameters"] if parameter["in"] == "path"]
            assert all("{" + name + "}" in path for name in given)
            assert path.count("{") == len(given)


async def test_real_responses_fit_the_document(live):
    async with live(Agent(ScriptedModel(says("hello")), name="ann")) as server:
        document = (await server.client.get("/openapi.json")).json()
        await server.client.post("/agents/ann/turns", json={"message": "hi", "session": "s"})
        for path in ("/agents", "/agents/{agent}/sessions", "/agents/{agent}/sessions/{session}",
                     "/agents/{agent}/sessions/{session}/records", "/agents/{agent}/sessions/{session}/why",
                     "/agents/{agent}/approvals", "/v1/models"):  # fmt: skip
            answer = await server.client.get(path.replace("{agent}", "ann").replace("{session}", "s"))
            schema = document["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
            whole = {**schema, "components": document["components"]}
            assert list(Draft202012Validator(whole).iter_errors(json.loads(answer.text))) == []
