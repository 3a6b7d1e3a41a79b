"""The `worker` command: runs turns that wait in a store, beside any number of other workers."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from windlass import Agent
from windlass._text import inert
from windlass.engines.pool import POLL, Worker

from .assembling import shared_agent
from .loading import ScopeFactory, scope_option
from .output import echo
from .stores import report_errors
from .temporal import temporal_options, temporal_runner

if TYPE_CHECKING:
    from windlass.engines.temporal import TemporalRunner


@click.command()
@click.argument("agent", metavar="MODULE:AGENT")
@click.option("--store", help="The store that the workers share: sqlite:///FILE or postgresql://…")
@click.option("--concurrency", type=click.IntRange(1), default=8, show_default=True, help="How many turns run at once.")
@click.option("--poll", type=click.FloatRange(0.001), default=POLL, show_default=True, help="In seconds, when idle.")
@click.option("--until-idle", is_flag=True, help="Stop when there is nothing to do.")
@temporal_options
@click.option(
    "--heartbeat", type=click.FloatRange(1), default=2.0, show_default=True, help="Under Temporal, in seconds."
)
@click.option(
    "--drain",
    type=click.FloatRange(0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long turns may take to end at SIGTERM. The rest is interrupted, and other workers resume it.",
)
@scope_option
def worker(
    agent: str,
    store: str | None,
    concurrency: int,
    poll: float,
    until_idle: bool,
    temporal: str | None,
    task_queue: str,
    namespace: str,
    heartbeat: float,
    drain: float,
    scope: ScopeFactory | None,
) -> None:
    """Run turns that wait in a store.

    These are messages that `windlass submit` has queued, turns whose process has died, and turns that were answered.
    Any number of workers may use the same store. SIGTERM and Ctrl-C let the turns end that run; a second one
    interrupts them.

    With --temporal, Temporal decides who works on a session, and keeps its timers: see the guide "From a laptop to a
    cluster". A worker that sends no heartbeat for --heartbeat seconds loses its sessions.
    """
    if temporal is not None and until_idle:
        raise click.UsageError("--until-idle does not go with --temporal: Temporal knows what there is to do")
    named, _ = shared_agent(agent, store)
    show_log()

    async def work() -> None:
        try:
            if temporal is not None:
                runner = await temporal_runner(
                    named, temporal, namespace, task_queue=task_queue, scope=scope, heartbeat=heartbeat
                )
                await work_under_temporal(runner, concurrency, drain)
                return
            made = Worker(named, concurrency=concurrency, scope=scope, poll=poll)
            stop_at_signals(made)
            echo(f"worker {os.getpid()} of agent {named.name}", err=True)
            await made.run(until_idle=until_idle, patience=drain)
        finally:
            await close(named)

    report_errors(lambda: asyncio.run(work()))


async def work_under_temporal(runner: TemporalRunner[Any, Any], concurrency: int, drain: float) -> None:
    """Work until a signal comes. A second one interrupts the turns."""
    stopped = asyncio.Event()

    def stop() -> None:
        if stopped.is_set():
            runner.interrupt()
        stopped.set()
        tell_of_stop(runner.running)

    at_signals(stop)
    async with runner.worker(concurrency=concurrency, patience=drain):
        echo(f"worker {os.getpid()} of agent {runner.agent.name}, task queue {runner.task_queue}", err=True)
        await stopped.wait()


def stop_at_signals(made: Worker[Any, Any]) -> None:
    """The first SIGTERM or Ctrl-C stops a worker; the second one interrupts its turns, too."""

    def stop() -> None:
        if made.stopping:
            made.interrupt()
        made.stop()
        tell_of_stop(made.running)

    at_signals(stop)


def tell_of_stop(running: Sequence[str]) -> None:
    """Say that a worker stops."""
    echo(f"worker {os.getpid()} takes no more; sessions at work: {len(running)}", err=True)


def at_signals(stop: Callable[[], None]) -> None:
    """Call a function at SIGTERM and Ctrl-C."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, stop)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop))


async def close(agent: Agent[Any, Any]) -> None:
    """Close an agent and its store."""
    await agent.aclose()
    await agent.store.close()


def show_log() -> None:
    """Print what workers log."""
    logger = logging.getLogger("windlass.worker")
    logger.addHandler(_Printer())
    logger.setLevel(logging.INFO)
    logger.propagate = False


class _Printer(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        echo(inert(record.getMessage()), err=True)
