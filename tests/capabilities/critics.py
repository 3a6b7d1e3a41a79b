"""Critics for tests: verdicts as JSON, models that give them, and what was noted."""

from __future__ import annotations

import json
from typing import Any

from windlass import Agent, ModelError, Noted
from windlass.capabilities import Critique
from windlass.testing import FunctionModel, Scripted, ScriptedModel, says


def verdict(verdict: str, score: int = 5, feedback: str = "") -> Scripted:
    """A reply with a critique."""
    return says(json.dumps({"verdict": verdict, "score": score, "feedback": feedback}))


APPROVE = verdict("approve", 9)
REVISE = verdict("revise", 4, "Say more.")
REJECT = verdict("reject", 0, "This is dangerous.")


def critic_model(*verdicts: Any, name: str = "critic") -> ScriptedModel:
    """A critic that gives these verdicts in order."""
    return ScriptedModel(*verdicts, name=name)


def strict_critic(name: str = "critic", *, wants: str = "good") -> Any:
    """A critic without a memory: it approves answers that contain a word. It keeps its `requests`."""

    requests: list[Any] = []

    def judge(request: Any) -> Scripted:
        requests.append(request)
        answer = request.messages[-1].text.rpartition("<answer>")[2]
        return APPROVE if wants in answer else REVISE

    model: Any = FunctionModel(judge, name=name)
    model.requests = requests
    return model


def down(name: str = "critic") -> FunctionModel:
    """A critic that cannot be reached."""

    def fail(request: Any) -> Any:
        raise ModelError("the critic is down")

    return FunctionModel(fail, name=name)


def critic_agent(*replies: Any, **options: Any) -> Agent:
    """An agent that is a critic."""
    model = ScriptedModel(*replies, name="critic-model")
    return Agent(model, output=Critique, name="inspector", **options)


async def notes(agent: Agent, kind: str, session: str = "s") -> list[Any]:
    """The data of the notes of one kind in a log."""
    return [note.data for note in await agent.store.read(session) if type(note) is Noted and note.kind == kind]
