"""Hooks add context beside the user message: two lookups run in parallel, and the transcript keeps none of it."""

import asyncio

from windlass import Agent, StepStarting, TextPart, Turn, TurnStarting
from windlass.testing import ScriptedModel, says

NOTES = {"ann": "Ann prefers short answers."}
model = ScriptedModel(says("Monday."), says("At nine."))
agent = Agent[str, str](model)


@agent.inject(TurnStarting, group="lookups")
async def notes(event: TurnStarting, turn: Turn[str]) -> str | None:
    """Injections of one group run in parallel; their texts appear in the order of registration."""
    return NOTES.get(turn.scope)


@agent.inject(TurnStarting, group="lookups", optional=True)
async def search(event: TurnStarting) -> str:
    """If an optional injection fails, it is skipped, and the log says so."""
    raise ConnectionError("the search engine is down")


@agent.inject(StepStarting)
def clock(event: StepStarting) -> str:
    return "It is Friday."


async def main() -> None:
    first = await agent.run("When do we meet?", session="s1", scope="ann")
    second = await agent.run("At what time?", session="s1", scope="bob")
    print(first.text, second.text)

    sent = [part.text for part in model.requests[0].messages[0].parts if isinstance(part, TextPart)]
    print("the model read:", sent)
    assert sent == ["When do we meet?", "Ann prefers short answers.", "It is Friday."]
    assert [message.text for message in second.messages] == ["When do we meet?", "Monday.", "At what time?", "At nine."]


asyncio.run(main())
