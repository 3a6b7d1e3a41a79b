"""A gate rejects a reply that names a price, and a rewrite removes card numbers from every request."""

import re

from windlass import Agent, Message, ModelCalling, ModelReplying, ModelRequest, Regenerate, ReplyRejected, TextPart
from windlass.testing import ScriptedModel, says

CARD = re.compile(r"\b\d{4}( ?\d{4}){3}\b")
model = ScriptedModel(says("It costs 99 EUR."), says("Our sales team will name you a price."))
agent = Agent(model, system="You answer questions about our product.")


@agent.rewrite(ModelCalling, band="guard")
def hide_cards(event: ModelCalling) -> ModelRequest:
    """Runs last, on every request that leaves."""
    return event.request.replace(messages=[without_cards(message) for message in event.request.messages])


def without_cards(message: Message) -> Message:
    parts = [p.replace(text=CARD.sub("[card]", p.text)) if isinstance(p, TextPart) else p for p in message.parts]
    return message.replace(parts=tuple(parts))


@agent.gate(ModelReplying)
def no_prices(event: ModelReplying) -> Regenerate | None:
    """The model is asked again and reads its rejected reply and this feedback; the user never sees the reply."""
    return Regenerate("Never name a price.") if "EUR" in event.reply.text else None


@agent.observe(ReplyRejected)
def report(fact: ReplyRejected) -> None:
    print(f"rejected by {', '.join(fact.by)}: {fact.feedback}")


result = agent.run_sync("What does it cost? My card is 1234 5678 9012 3456.")
print(result.text)
assert result.text == "Our sales team will name you a price."
assert model.requests[0].messages[0].text.endswith("My card is [card].")
assert "Never name a price." in model.requests[1].messages[-1].text
assert len(result.messages) == 2  # the rejected reply is in the log, not in the transcript
