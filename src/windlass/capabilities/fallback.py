"""Fallback: asks another model when a model fails, refuses, or is known to be down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from windlass.errors import ModelError, RequestRefused, is_transient, text_of
from windlass.messages import ModelCall, ModelReply, ModelRequest
from windlass.protocols import Model
from windlass.turns import Turn
from windlass.types import CallModel

from .breakers import Breaker, Breakers
from .option_types import check_types
from .options import Errors, error_test, require, require_name, require_seconds
from .timeout import late_model, within

if TYPE_CHECKING:
    from windlass import Hooks

VENDOR_SETTINGS = ("extra", "headers", "service_tier", "prompt_cache_key")
"""The settings that only the vendor they were written for understands."""

REFUSALS = ("refusal", "content_filter")


class Fallback:
    """Ask the next of these `models` when one fails, takes longer than `timeout` seconds, or refuses.

    `on` names other errors: classes, categories of the error policy, or a function of an error. With `refusals=False` a
    refusal is an answer. A request for a model of another vendor goes without settings that only the first vendor
    understands. Gates on `ModelCalling` judge each request: a model that a guard forbids is not asked. If all models
    fail, the last error is raised, with the first one as its cause.

    A circuit breaker, common to all agents of the process, remembers models that fail: after `breaker.failures`
    failures in a row a model is not asked for `breaker.seconds`, unless all others fail, too. `None` turns it off.
    """

    @check_types
    def __init__(
        self,
        *models: Model | str,
        on: Errors | None = None,
        timeout: float | None = None,
        refusals: bool = True,
        breaker: Breaker | None = Breaker(),  # noqa: B008
        name: str = "fallback",
    ) -> None:
        require_name("Fallback", name)
        require("Fallback", "models", models, bool(models), "one or more models")
        if timeout is not None:
            require_seconds("Fallback", "timeout", timeout)
        self.name = name
        self.models = models
        self.timeout = timeout
        self.refusals = refusals
        self.breaker = breaker
        self._matches = _failed if on is None else error_test("Fallback", on)

    def install(self, registrar: Hooks) -> None:
        """Bring the models, and register the wrap around model calls."""
        others = [registrar.model(model) for model in self.models]
        breakers = registrar.shared(Breakers, name="windlass.breakers")

        async def fall_back(request: ModelRequest, call_next: CallModel, turn: Turn[Any]) -> ModelReply:
            return await _Attempts(self, request, call_next, turn, breakers()).first_of(others)

        registrar.wrap(ModelCall, name=self.name)(fall_back)

    def summary(self) -> str:
        """The models in their order, for `explain`."""
        names = [model if isinstance(model, str) else model.name for model in self.models]
        return f"then {', then '.join(names)}"

    def falls_back_on(self, error: BaseException) -> bool:
        """Whether the next model is asked after this error."""
        return not isinstance(error, RequestRefused) and bool(self._matches(error))


class _Attempts:
    """The attempts at one model call."""

    __slots__ = ("breakers", "call_next", "fallback", "first", "request", "turn")

    def __init__(
        self, fallback: Fallback, request: ModelRequest, call_next: CallModel, turn: Turn[Any], breakers: Breakers
    ) -> None:
        self.fallback = fallback
        self.request = request
        self.call_next = call_next
        self.turn = turn
        self.breakers = breakers
        self.first: BaseException | None = None

    async def first_of(self, others: list[str]) -> ModelReply:
        """The reply of the first model that gives one: the request's own, or one of these."""
        candidates = [self.request.model, *[other for other in others if other != self.request.model]]
        *earlier, last = self._in_order(candidates)
        for model in earlier:
            try:
                reply = await self._ask(model)
            except Exception as error:
                if not self.fallback.falls_back_on(error):
                    raise
                self.first = self.first or error
                self._note(model, f"{type(error).__name__}: {text_of(error)}")
            else:
                if not self.fallback.refusals or reply.finish not in REFUSALS:
                    return reply
                self._note(model, f"it finished with {reply.finish!r}")
        try:
            return await self._ask(last)
        except Exception as error:
            if self.first is not None and error is not self.first:
                raise error from self.first
            raise

    def _in_order(self, candidates: list[str]) -> list[str]:
        """The models; those whose circuit is open come last."""
        breaker = self.fallback.breaker
        if breaker is None or not self.breakers.any_open:
            return candidates
        now = self.turn.now()
        closed = [model for model in candidates if self.breakers.lets_pass(model, breaker, now)]
        left_out = [model for model in candidates if model not in closed]
        for model in left_out if closed else ():
            self._note(model, "it failed too often lately")
        return [*closed, *left_out]

    async def _ask(self, model: str) -> ModelReply:
        fallback, request = self.fallback, self._request_for(model)
        breaker, seconds = fallback.breaker, fallback.timeout
        try:
            if seconds is None:
                reply = await self.call_next(request)
            else:
                work = self.call_next(request)
                reply = await within(seconds, work, self.turn, lambda: late_model(request, seconds))
        except Exception as error:
            if breaker is not None and is_transient(error):
                self.breakers.note_failure(model, breaker, self.turn.now())
            raise
        if breaker is not None:
            self.breakers.note_success(model)
        return reply

    def _request_for(self, model: str) -> ModelRequest:
        request = self.request
        if model == request.model:
            return request
        return request.replace(model=model, settings=settings_for(model, request))

    def _note(self, model: str, why: str) -> None:
        self.turn.note(self.fallback.name, {"model": model, "why": why})


def settings_for(model: str, request: ModelRequest) -> Mapping[str, Any]:
    """The settings without those of another vendor; vendors are told apart by the beginning of the models' names."""
    if model.partition(":")[0] == request.model.partition(":")[0]:
        return request.settings
    return {name: value for name, value in request.settings.items() if name not in VENDOR_SETTINGS}


def _failed(error: BaseException) -> bool:
    """Whether a model failed, for whatever reason."""
    return isinstance(error, ModelError) or is_transient(error)
