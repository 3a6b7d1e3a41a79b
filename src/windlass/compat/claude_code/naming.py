"""Ids as hooks may use them in names of files."""

from __future__ import annotations

import re
import uuid

_SPACE = uuid.UUID("f3a1d5f2-7f39-5d4c-8a63-9d1c7a0d6b52")


def safe_id(text: str) -> str:
    """An id that is safe in a file name: unchanged if it is safe already, otherwise a UUID made from it."""
    if re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}", text, re.ASCII):
        return text
    return str(uuid.uuid5(_SPACE, text))


def session_names(session: str) -> tuple[str, str]:
    """The id of the session that a person opened, and of the sub-agent at work in it; empty if there is none."""
    root, below, rest = session.partition("//")
    return safe_id(root), f"agent-{re.sub(r'[^A-Za-z0-9]+', '-', rest)}" if below else ""


def call_id(given: str) -> str:
    """The id of a call as a `tool_use_id`."""
    return f"toolu_{re.sub(r'[^A-Za-z0-9]+', '_', given)}"


def folder_name(path: str) -> str:
    """The name of the folder with the transcripts of a project."""
    return re.sub(r"[^A-Za-z0-9]", "-", path)[-200:]
