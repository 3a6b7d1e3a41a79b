"""A project with hooks, and an agent that plays a turn in it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from windlass import Agent, ModelReply, Result, tool
from windlass.capabilities import Planning
from windlass.compat.claude_code import ClaudeCodeHooks
from windlass.testing import ScriptedModel, says
from windlass.tools import Workspace

CORPUS = Path(__file__).parent / "corpus"


class Project:
    """A folder with the scripts of the corpus, and settings."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ran: list[dict[str, Any]] = []
        self.messages: list[str] = []
        shutil.copytree(CORPUS, folder / ".claude" / "hooks")

    def write(self, settings: Mapping[str, Any], name: str = "settings.json") -> None:
        """Write a settings file."""
        (self.folder / ".claude" / name).write_text(json.dumps(settings))

    def load(self, hooks: Mapping[str, Any], **options: Any) -> ClaudeCodeHooks:
        """The hooks of the project, which is trusted unless options say otherwise."""
        self.write({"hooks": hooks})
        given = {"trust": True, "on_message": self.messages.append, **options}
        return ClaudeCodeHooks.load(self.folder, **given)

    def agent(self, hooks: ClaudeCodeHooks, *replies: ModelReply, **options: Any) -> Agent[Any, Any]:
        """An agent with tools that only remember what they were asked, and the files of the project."""

        @tool(inline=True)
        def shell(command: str, timeout: float | None = None) -> str:
            """Run a command."""
            self.ran.append({"command": command, "timeout": timeout})
            if command.startswith("false"):
                return "it broke\n[exit status 1]"
            return f"ran {command}"

        @tool(inline=True)
        def fetch(url: str, offset: int = 0) -> str:
            """Fetch a page."""
            self.ran.append({"url": url})
            return "a page"

        capabilities = [Workspace(self.folder, shell=False, protect=[]), Planning(), hooks]
        extra = options.pop("capabilities", [])
        tools = [shell, fetch, *options.pop("tools", [])]
        return Agent(ScriptedModel(*replies), tools=tools, capabilities=[*capabilities, *extra], **options)

    async def play(self, hooks: ClaudeCodeHooks, *replies: ModelReply, message: str = "Go.", **options: Any) -> Result:
        """Play one turn; the model says 'Done.' when its replies are used up."""
        agent = self.agent(hooks, *replies, *([says("Done.")] * 4), **options)
        async with agent:
            result = await agent.run(message)
        self.requests = agent.model.requests
        return result

    def seen(self, event: str) -> list[dict[str, Any]]:
        """The inputs that the hook `record.sh` has kept of an event."""
        file = self.folder / "seen" / f"{event}.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def text(self, request: int = -1) -> str:
        """All that the model read in one of its requests."""
        asked = self.requests[request]
        parts = [part for message in asked.messages for part in message.parts]
        return "\n".join([asked.system, *[getattr(part, "text", "") for part in parts]])


def command(script: str, **options: Any) -> dict[str, Any]:
    """A handler that runs a script of the corpus, or a command."""
    text = f'"$CLAUDE_PROJECT_DIR"/.claude/hooks/{script}' if (CORPUS / script).exists() else script
    return {"type": "command", "command": text, **options}


def on(event: str, *handlers: Mapping[str, Any] | str, matcher: str | None = None) -> dict[str, Any]:
    """Settings with one group of hooks."""
    made = [command(one) if isinstance(one, str) else dict(one) for one in handlers]
    return {event: [{**({} if matcher is None else {"matcher": matcher}), "hooks": made}]}


def results(result: Result) -> Sequence[Any]:
    """The results of the calls of the first step with calls."""
    return next(step.results for step in result.steps if step.results)
