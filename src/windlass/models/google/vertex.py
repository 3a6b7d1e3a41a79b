"""Opens `vertex:model`: Gemini models in a project of Google Cloud."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import google.genai as genai

from windlass.errors import ConfigError

from .client import GoogleGemini

CREDENTIALS = "GOOGLE_APPLICATION_CREDENTIALS"


def vertex(
    model: str,
    *,
    client: genai.Client | None = None,
    project: str | None = None,
    location: str | None = None,
    api_key: str | None = None,
    base_url: str | None = None,
    settings: Mapping[str, Any] = {},
    name: str | None = None,
) -> GoogleGemini:
    """A Gemini model at Vertex AI. Project and location are the options, or `GOOGLE_CLOUD_PROJECT` and
    `GOOGLE_CLOUD_LOCATION` (default: global); credentials are found as by Google's own tools. Instead of a project, an
    `api_key` or `GOOGLE_API_KEY` will do."""
    name = name or f"vertex:{model}"
    if "claude" in model:
        hint = f"open it as 'anthropic:{model}' with client=AsyncAnthropicVertex(…)"
        raise ConfigError(f"model={name!r} is not a Gemini model: {hint}")
    if client is None:
        if not api_key:
            project = project or os.environ.get("GOOGLE_CLOUD_PROJECT")
        if not project:
            api_key = api_key or os.environ.get("GOOGLE_API_KEY")
        if not project and not api_key:
            remedy = "set GOOGLE_CLOUD_PROJECT, or pass project=…, api_key=… or client=…"
            raise ConfigError(f"model={name!r} has no project: {remedy}")
        path = os.environ.get(CREDENTIALS)
        if project and path and not os.path.exists(path):
            raise ConfigError(f"model={name!r} has no credentials: {CREDENTIALS} names {path!r}, which does not exist")
        location = location or os.environ.get("GOOGLE_CLOUD_LOCATION") or "global"
    return GoogleGemini(
        model, client=client, base_url=base_url, api_key=api_key, settings=settings, name=name, project=project,
        location=None if api_key else location, vertex=True,
    )  # fmt: skip


__all__ = ["vertex"]
