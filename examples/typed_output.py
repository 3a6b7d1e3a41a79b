"""The answer is a value of your type; if a reply does not fit, the model is asked again and reads the reason."""

from msgspec import Struct

from windlass import Agent
from windlass.testing import ScriptedModel, says


class Invoice(Struct):
    """The data we want from a letter."""

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
assert model.requests[0].output is not None  # the model gets the schema
