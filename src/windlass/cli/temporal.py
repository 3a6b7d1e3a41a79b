"""The options with which commands reach Temporal."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from windlass import Agent, Result
from windlass.decisions import AnyResolution
from windlass.deltas import StreamEvent
from windlass.messages import Message
from windlass.watching import position_after

if TYPE_CHECKING:
    from windlass.engines.temporal import TemporalRunner

F = TypeVar("F", bound=Callable[..., Any])


def temporal_options(command: F) -> F:
    """Add the options of Temporal to a command."""
    for option in reversed(
        (
            click.option(
                "--temporal", metavar="HOST:PORT", help="Let Temporal at this address decide who works on what."
            ),
            click.option("--task-queue", default="windlass", show_default=True, help="The task queue in Temporal."),
            click.option(
                "--namespace",
                default="default",
                show_default=True,
                envvar="TEMPORAL_NAMESPACE",
                help="The namespace in Temporal.",
            ),
        )
    ):
        command = option(command)
    return command


class TemporalTurns(NamedTuple):
    """The turns of a session under Temporal: other processes play them."""

    agent: Agent[Any, Any]
    session: str
    address: str
    namespace: str
    task_queue: str

    async def play(
        self,
        show: Callable[[StreamEvent], None],
        message: Message | None = None,
        answers: Mapping[str, AnyResolution] | None = None,
    ) -> Result[Any]:
        """Send a message or answers, show what happens, and return how the turn ended."""
        from windlass.engines.messages import latest_result

        runner = await temporal_runner(self.agent, self.address, self.namespace, task_queue=self.task_queue)
        start, key = len(await self.agent.store.read(self.session)), os.urandom(8).hex()
        if message is not None:
            await runner.send(message, session=self.session, key=key)
        for ask_id, answer in (answers or {}).items():
            await runner.resolve(self.session, ask_id, answer)
        if message is None and not answers:
            await runner.wake(self.session)
        since = position_after(self.session, start)
        async with self.agent.watch(self.session, since=since) as watch:
            async for event in watch:
                show(event)
        if message is not None:
            return await runner.result(self.session, key)
        return await latest_result(self.agent, self.session)


async def temporal_runner(
    agent: Agent[Any, Any], address: str, namespace: str, **options: Any
) -> TemporalRunner[Any, Any]:
    """A runner with a connection to Temporal."""
    from windlass.engines.temporal import TemporalRunner, connect

    return TemporalRunner(agent, await connect(address, namespace), **options)
