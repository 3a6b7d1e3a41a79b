"""The agent of the recorded shop, for `windlass ui --agent tests/inspector/desk.py:agent`, and one that is stricter."""

from __future__ import annotations

import time
from typing import Any

from tests.inspector.shop import HOSTILE, desk

from windlass import Agent, Deny, ToolCalling
from windlass.stores import MemoryStore
from windlass.testing import calls, says


def agent() -> Agent[Any, Any]:
    """The agent as it recorded the sessions."""
    return desk(MemoryStore())


def stricter() -> Agent[Any, Any]:
    """The same agent with a new gate."""
    made = desk(MemoryStore())

    @made.gate(ToolCalling, tool="find_order", name="opening_hours")
    def opening_hours(event: Any) -> Any:
        return Deny("the shop is closed") if event.call.arguments["order"] == "4417" else None

    return made


def slow() -> Agent[Any, Any]:
    """The same agent with a gate that blocks its thread."""
    made = desk(MemoryStore())

    @made.gate(ToolCalling, name="busy")
    def busy(event: Any) -> Any:
        time.sleep(0.1)

    return made


def leaving() -> Agent[Any, Any]:
    """The same agent with a gate that ends its process."""
    made = desk(MemoryStore())

    @made.gate(ToolCalling, name="leaves")
    def leaves(event: Any) -> Any:
        raise SystemExit(3)

    return made


def talking() -> Agent[Any, Any]:
    """The agent with a model that looks an order up, writes a mail and says that it did."""
    mail = {"to": "ann@fjell.example", "text": "Your tent was delivered."}
    return desk(
        MemoryStore(),
        calls([("find_order", {"order": "4417"}), ("send_mail", mail)], _text="Let me look."),
        says("I have written to you."),
    )


def hostile() -> Agent[Any, Any]:
    """The agent with a model that says what attackers write."""
    mail = calls("send_mail", to=HOSTILE, text=HOSTILE, _text=HOSTILE)
    return desk(MemoryStore(), mail, says("done"), name="<b>desk</b>")
