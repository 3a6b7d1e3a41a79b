"""OpenAI's Chat Completions: an agent as a model."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any

from msgspec import Struct
from starlette.responses import Response

from windlass.messages import Usage
from windlass.outcomes import StopReason

from .endpoints import Call, Endpoint
from .errors import Problem, problem_of
from .json import to_json
from .model_inputs import SESSION_HEADER, Said, check_answered, open_session, read_messages, refuse, session_of
from .streams import sse
from .telling import Teller
from .turns import Run, Turns


class StreamOptions(Struct, frozen=True):
    """Whether the last chunk has the usage."""

    include_usage: bool | None = None


class ChatRequest(Struct, frozen=True):
    """A request for a chat completion. `model` is the name of an agent; its settings and tools are its own.

    `user`, or the header `X-Windlass-Session`, names a session: then only what follows the last answer is new.
    """

    model: str
    messages: list[Said]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    n: int | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    response_format: dict[str, Any] | None = None
    logprobs: bool | None = None


class ModelView(Struct, frozen=True):
    """An agent as a model."""

    id: str
    object: str = "model"
    created: int = 0
    owned_by: str = "windlass"


class ModelsView(Struct, frozen=True):
    """The agents as models."""

    data: tuple[ModelView, ...]
    object: str = "list"


def openai_problem(problem: Problem) -> Response:
    """A problem as OpenAI's clients read it. They would send most requests again, and so run a turn twice."""
    headers = {} if problem.type == "session_busy" else {"x-should-retry": "false"}
    return Response(to_json({"error": error_body(problem)}), problem.status, headers, "application/json")


def error_body(problem: Problem) -> dict[str, Any]:
    """The content of an error."""
    return {"message": problem.message, "type": problem.type, "code": problem.type, "param": None, **problem.details}


def chat_usage(usage: Usage) -> dict[str, Any]:
    """What a turn spent, in all its model calls."""
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.total,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


async def models(call: Call) -> ModelsView:
    """The agents as models."""
    return ModelsView(tuple([ModelView(agent.name) for agent in call.hosting.agents]))


async def model(call: Call) -> ModelView:
    """One agent as a model."""
    return ModelView(call.hosting.turns(call.path("model")).agent.name)


async def complete(call: Call) -> Response:
    """Run a turn, and answer as a model does."""
    wanted: ChatRequest = call.body
    _check(wanted)
    turns = call.hosting.turns(wanted.model)
    history, message = read_messages(wanted.messages)
    session = await open_session(turns, session_of(call, wanted.user), history)
    run = await turns.start(session, message)
    head = {"id": f"chatcmpl-{run.session}", "created": int(time.time()), "model": turns.agent.name}
    if wanted.stream:
        counts = wanted.stream_options is not None and bool(wanted.stream_options.include_usage)
        response: Response = call.hosting.streams.respond(_chunks(turns, run, head, counts=counts))
    else:
        await run.wait()
        response = Response(to_json(_completion(run, head)), media_type="application/json")
    response.headers[SESSION_HEADER] = run.session.encode("ascii", "backslashreplace").decode()
    return response


def _check(wanted: ChatRequest) -> None:
    if wanted.tools or wanted.functions:
        raise refuse("tools", "the tools of an agent are its own")
    if wanted.n not in (None, 1):
        raise refuse("n", "a turn has one answer")
    if wanted.logprobs:
        raise refuse("logprobs", "an agent has none")
    if wanted.response_format is not None and wanted.response_format.get("type") != "text":
        raise refuse("response_format", "the type of an agent's answer is its own")


def _completion(run: Run, head: dict[str, Any]) -> dict[str, Any]:
    message = {"role": "assistant", "content": check_answered(run), "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": _finish_reason(run), "logprobs": None}
    usage = chat_usage(run.outcome().usage)
    return {**head, "object": "chat.completion", "choices": [choice], "usage": usage}


async def _chunks(turns: Turns, run: Run, head: dict[str, Any], *, counts: bool) -> AsyncGenerator[bytes, None]:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return sse(to_json({**head, "object": "chat.completion.chunk", "choices": [choice]}))

    teller = Teller()
    yield chunk({"role": "assistant", "content": ""})
    try:
        async for event, _ in turns.follow(run):
            if text := teller.feed(event):
                yield chunk({"content": text})
        if text := teller.finish(check_answered(run)):
            yield chunk({"content": text})
        yield chunk({}, _finish_reason(run))
        if counts:
            usage = chat_usage(run.outcome().usage)
            yield sse(to_json({**head, "object": "chat.completion.chunk", "choices": [], "usage": usage}))
        yield sse(b"[DONE]")
    except Exception as error:
        yield sse(to_json({"error": error_body(problem_of(error))}))


_FINISH = {
    StopReason.COMPLETED: "stop",
    StopReason.HALTED: "stop",
    StopReason.CONTENT_FILTER: "content_filter",
    StopReason.REFUSAL: "content_filter",
    StopReason.WITHHELD: "content_filter",
    StopReason.FORBIDDEN: "content_filter",
}


def _finish_reason(run: Run) -> str:
    """Why a turn ended, in OpenAI's words; a limit of any kind is `length`."""
    return _FINISH.get(run.outcome().stop_reason, "length")


ENDPOINTS = (
    Endpoint("GET", "/v1/models", models, "The agents as models", "openai", returns=ModelsView, failure=openai_problem),
    Endpoint(
        "GET", "/v1/models/{model}", model, "An agent as a model", "openai",
        returns=ModelView, failure=openai_problem,
    ),
    Endpoint(
        "POST", "/v1/chat/completions", complete, "Chat completion", "openai",
        body=ChatRequest, streams=True, failure=openai_problem,
    ),
)  # fmt: skip
