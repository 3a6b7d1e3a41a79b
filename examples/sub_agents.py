"""A team: a lead hands tasks to two researchers, with one guard and one budget for all."""

from typing import Any

from windlass import Agent, Deny, ModelRequest, TokenLimit, ToolCalling, ToolReturned, tool
from windlass.testing import FunctionModel, ScriptedModel, calls, says


@tool(effect="pure", inline=True)
def search(query: str) -> str:
    """Search the library."""
    return f"a page about {query}"


@tool
def publish(text: str) -> str:
    """Publish a text."""
    return "published"


def research(request: ModelRequest) -> Any:
    """Search first, then try to publish, then report what was found."""
    done = sum(message.role == "tool" for message in request.messages)
    topic = request.messages[0].text
    if done == 0:
        return calls("search", query=topic)
    return calls("publish", text=topic) if done == 1 else says(f"{topic}: found one page.")


researcher = Agent(FunctionModel(research), name="researcher", tools=[search, publish])
both = calls([("researcher", {"task": "windlasses"}), ("researcher", {"task": "pawls"})])
lead = Agent(
    ScriptedModel(both, says("Both are old.")),
    name="lead",
    tools=[researcher.as_tool(description="Looks something up.", share=0.5)],
    criteria=[TokenLimit(10_000)],
)


@lead.gate(ToolCalling, tool="publish", band="guard")
def nothing_leaves(event: ToolCalling) -> Deny:
    """A guard of the lead applies to every agent below it."""
    return Deny("only an editor may publish")


@lead.observe(ToolReturned, wait=True)
def show(fact: ToolReturned) -> None:
    """Facts of a child have its session as their path."""
    print(f"{fact.path or 'lead':8} {fact.name:10} {fact.result.status:7} {fact.result.text}")


result = lead.run_sync("How old are windlasses and pawls?", session="s1")
print(result.text, f"({result.usage.requests} requests)")
assert result.usage.requests == 2 + 2 * 3  # the children's requests count as the lead's
assert result.text == "Both are old."
