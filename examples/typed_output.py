"""The answer is a value of your type; a reply that does not fit is asked for again, with the reason."""

from msgspec import Struct

from windlass import Agent
from windlass.testing import ScriptedModel, says


class Invoice(Struct):
    """What we want to know of a letter."""

    number: str
    total: float
    paid: bool = False


model = ScriptedModel(
    says('{"number": "A-17", "total": "about forty"}'),
    says('```json\n{"number": "A-17", "total": 40.5}\n```'),
)
agent = Agent(model, output=Invoice, system="Read the invoice.")

result = agent.run_sync("Invoice A-17, 40.50 EUR")
print(result.output)
print("the first reply was refused:", model.requests[1].messages[-1].text.splitlines()[0])
assert result.output == Invoice("A-17", 40.5)
assert model.requests[0].output is not None  # the model is told the schema
