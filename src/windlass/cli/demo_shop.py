"""The shop of the demo: its hooks and the clerk's tools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from windlass import Ask, Deny, Hooks, ModelReplying, Regenerate, Stopping, ToolCalling, TurnStarting, Veto, tool

hooks = Hooks()


# ---------------------------------------------------------------- hooks


@hooks.inject(TurnStarting)
def calendar(event: TurnStarting) -> str:
    """inject: gives the model background facts"""
    return "Today is Friday. Refunds take three days."


@hooks.gate(ToolCalling, tool="delete_*")
def keep_invoices(event: ToolCalling) -> Deny:
    """gate: denies a call; the model reads why"""
    return Deny("Invoices are kept for ten years.")


@hooks.gate(ToolCalling, tool="refund")
def large_sums(event: ToolCalling) -> Ask | None:
    """gate: asks a person; the turn is suspended until then"""
    euros = event.call.arguments["euros"]
    return Ask(f"Refund {euros} euros?") if euros > 50 else None


@hooks.gate(ModelReplying, live=True)
def no_promises(event: ModelReplying) -> Regenerate | None:
    """gate: rejects a reply that is already streaming"""
    return Regenerate("Promise nothing.") if "promise" in event.reply.text else None


@hooks.gate(Stopping)
def be_polite(event: Stopping) -> Veto | None:
    """gate: vetoes the end of the turn, once"""
    return None if event.stop_active else Veto("Say good-bye, too.")


@hooks.transform
class HideCards:
    """transform: hides card numbers in the stream"""

    def __init__(self) -> None:
        self.held = ""

    def feed(self, text: str) -> Iterator[str]:
        """Release whole words only: the last word may be incomplete."""
        self.held += text
        *words, self.held = self.held.split(" ")
        for word in words:
            yield f"{_hidden(word)} "

    def flush(self) -> Iterator[str]:
        """Release the last word."""
        yield _hidden(self.held)


def _hidden(word: str) -> str:
    digits = sum(letter.isdigit() for letter in word)
    return word if digits < 12 else "".join("•" if letter.isdigit() else letter for letter in word)


# ---------------------------------------------------------------- tools


@tool(effect="pure", inline=True)
def find_order(number: int) -> str:
    """Find an order."""
    return f"order {number}: a kettle, 80 euros, sent on Monday"


@tool(inline=True)
def delete_customer(name: Annotated[str, Meta(max_length=20)]) -> str:
    """Delete all that is known of a customer."""
    raise AssertionError(f"{name} must not be deleted")


@tool(inline=True)
def refund(order: int, euros: int) -> str:
    """Give a customer money back."""
    return f"{euros} euros for order {order} are on their way"
