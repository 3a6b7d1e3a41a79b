"""What LangGraph gives to code that runs: a runtime, and a configuration in which such code finds it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from langchain_core.runnables.config import var_child_runnable_config
from langgraph.runtime import ExecutionInfo, Runtime

from windlass.turns import Turn

_RUNTIME = "__pregel_runtime"
"""Where `get_runtime`, `get_store` and `get_stream_writer` of LangGraph look."""


def runtime_in(turn: Turn[Any], store: Any = None) -> Runtime[Any]:
    """What LangGraph gives to a node: the scope as context, the store, and a writer for the stream."""
    info = ExecutionInfo("", "", turn.turn_ref, thread_id=turn.session_id, run_id=turn.turn_ref)
    return Runtime(context=turn.scope, store=store, stream_writer=writer(turn), execution_info=info)


def writer(turn: Turn[Any]) -> Callable[[Any], None]:
    """What writes to the stream: streams and observers get a `Progressed` fact."""

    def write(chunk: Any) -> None:
        turn.progress(0.0, None, chunk if isinstance(chunk, str) else repr(chunk))

    return write


@contextmanager
def configured(turn: Turn[Any], runtime: Runtime[Any]) -> Generator[None, None, None]:
    """Within this, code finds the runtime as it does in a graph."""
    config: Any = {"configurable": {"thread_id": turn.session_id, _RUNTIME: runtime}}
    token = var_child_runnable_config.set(config)
    try:
        yield
    finally:
        var_child_runnable_config.reset(token)
