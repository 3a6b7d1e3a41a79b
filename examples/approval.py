"""Two transfers wait for approval; each answer releases its own transfer."""

from windlass import Agent, Approve, Ask, Edit, Suspended, ToolCalling, tool
from windlass.testing import ScriptedModel, calls, says

sent: list[tuple[str, int]] = []


@tool
def transfer(to: str, amount: int) -> str:
    """Transfer an amount to a person."""
    sent.append((to, amount))
    return f"sent {amount} to {to}"


both = calls([("transfer", {"to": "ann", "amount": 20}), ("transfer", {"to": "bob", "amount": 5000})])
agent = Agent(ScriptedModel(both, says("Both are done.")), tools=[transfer])


@agent.gate(ToolCalling, tool="transfer")
def ask_first(event: ToolCalling) -> Ask:
    """Ask a person before every transfer."""
    given = event.call.arguments
    return Ask(f"Transfer {given['amount']} to {given['to']}?", allow=("approve", "edit", "reject"))


result = agent.run_sync("Pay ann 20 and bob 5000.", session="payments")
assert isinstance(result.outcome, Suspended)
assert sent == []
for asked in result.waiting_for:
    print(f"{asked.id}: {asked.question}")

ann, bob = result.waiting_for
result = agent.resume_sync("payments", answers={ann.id: Approve(by="eve")})
assert sent == [("ann", 20)]  # the other transfer still waits
print("still open:", *[asked.id for asked in result.waiting_for])

result = agent.resume_sync("payments", answers={bob.id: Edit({"to": "bob", "amount": 50}, by="eve")})
assert sent == [("ann", 20), ("bob", 50)]
print(result.text)
