"""Metrics: counters and histograms of what agents do, in the format of Prometheus."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from windlass.errors import ConfigError
from windlass.events import ModelCalled
from windlass.outcomes import Stopped
from windlass.records import (
    Asked,
    Compacted,
    ErrorHandled,
    Fact,
    HookFailed,
    ModelAttempted,
    ModelReplied,
    ReplyRejected,
    SideReplied,
    StepEnded,
    ToolCalled,
    ToolDecided,
    ToolReturned,
    TurnEnded,
    TurnStarted,
)

from .option_types import check_types
from .options import require, require_name

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from windlass import Hooks

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
"""The buckets of the histograms."""

OPEN = 10_000
"""How many calls may be under way at once; the time of further ones is not measured."""

NAMES = 200
"""How many names of tools or models become labels; further ones are counted under `other`."""


class _Labelled:
    """A metric with labels. What the metric has for given labels is looked up once: that costs more than counting."""

    __slots__ = ("_known", "_metric")

    def __init__(self, metric: Any) -> None:
        self._metric = metric
        self._known: dict[tuple[str, ...], Any] = {}

    def labels(self, *values: str) -> Any:
        found = self._known.get(values)
        if found is None:
            found = self._known[values] = self._metric.labels(*values)
        return found


class Metrics:
    """Count turns, steps, model calls, tokens, costs, tool calls, verdicts, errors and failing hooks.

    `registry` is one of prometheus_client (extra `metrics`); by default the capability has its own. One object may
    serve many agents. `text()` is what a scraper reads.
    """

    @check_types
    def __init__(
        self, registry: CollectorRegistry | None = None, *, prefix: str = "windlass", name: str = "metrics"
    ) -> None:
        try:
            import prometheus_client as prometheus
        except ImportError as error:
            raise ConfigError(f"Metrics needs prometheus_client ({error}): pip install 'windlass[metrics]'") from error
        require_name("Metrics", name)
        legal = registry is None or isinstance(registry, prometheus.CollectorRegistry)
        require("Metrics", "registry", registry, legal, "a CollectorRegistry of prometheus_client, or None")
        words = "letters, digits and underscores, not beginning with a digit"
        require("Metrics", "prefix", prefix, prefix.isidentifier() and prefix.isascii(), words)
        self.name = name
        self.registry = prometheus.CollectorRegistry() if registry is None else registry
        self._began: OrderedDict[Any, float] = OrderedDict()
        self._names: dict[str, set[str]] = {"tool": set(), "model": set()}
        self._lock = threading.Lock()
        self._text = prometheus.generate_latest

        def counter(what: str, help: str, *labels: str) -> Any:
            made = prometheus.Counter(f"{prefix}_{what}", help, labels, registry=self.registry)
            return _Labelled(made) if labels else made

        def histogram(what: str, help: str, *labels: str) -> Any:
            made = prometheus.Histogram(f"{prefix}_{what}", help, labels, buckets=SECONDS, registry=self.registry)
            return _Labelled(made) if labels else made

        self._turns = counter("turns", "Turns that ended, by outcome and stop reason", "outcome", "reason")
        self._turn_seconds = histogram("turn_seconds", "Time from the start of a turn to its end, waiting included")
        self._steps = counter("steps", "Steps that ended")
        self._replies = counter("model_calls", "Model calls, by status", "model", "status")
        self._model_seconds = histogram("model_seconds", "Time until a model replied", "model")
        self._tokens = counter("tokens", "Tokens, by kind", "model", "kind")
        self._cost = counter("cost_usd", "Known cost in USD", "model")
        self._calls = counter("tool_calls", "Results of tool calls, by status", "tool", "status")
        self._tool_seconds = histogram("tool_seconds", "Time until a tool returned", "tool")
        self._verdicts = counter("verdicts", "Verdicts on tool calls", "tool", "verdict")
        self._rejected = counter("replies_rejected", "Replies that hooks rejected")
        self._questions = counter("questions", "Questions to people", "event")
        self._errors = counter("errors", "Errors, by category and what was done", "category", "action")
        self._failures = counter("hook_failures", "Failures of hooks", "hook")
        self._compactions = counter("compactions", "Compactions", "by")

    def text(self) -> str:
        """All metrics in the text format of Prometheus."""
        return self._text(self.registry).decode()

    def install(self, registrar: Hooks) -> None:
        """Observe the facts that are counted."""

        counts: dict[type[Fact], Callable[[Any, str], object]] = {
            TurnStarted: lambda fact, session: self._begin((session, "turn"), fact.at),
            TurnEnded: self._turn_ended,
            StepEnded: lambda fact, session: self._steps.inc(),
            ModelCalled: self._model_called,
            ModelReplied: self._model_replied,
            ModelAttempted: self._model_attempted,
            SideReplied: self._side_replied,
            ToolCalled: self._tool_called,
            ToolReturned: self._tool_returned,
            ToolDecided: self._tool_decided,
            ReplyRejected: lambda fact, session: self._rejected.inc(),
            Asked: lambda fact, session: self._questions.labels(fact.event).inc(),
            ErrorHandled: lambda fact, session: self._errors.labels(fact.category, fact.action).inc(),
            HookFailed: lambda fact, session: self._failures.labels(fact.hook).inc(),
            Compacted: lambda fact, session: self._compactions.labels(fact.by).inc(),
        }

        def count(fact: Fact, session_id: str) -> None:
            counts[type(fact)](fact, session_id)

        for fact in counts:
            registrar.observe(fact, name=f"{self.name}_{fact.__name__}")(count)

    # ------------------------------------------------------------ times and labels

    def _begin(self, key: Any, at: float) -> None:
        with self._lock:
            self._began[key] = at
            if len(self._began) > OPEN:
                self._began.popitem(last=False)

    def _end(self, key: Any, at: float, histogram: Any) -> None:
        with self._lock:
            began = self._began.pop(key, None)
        if began is not None:
            histogram.observe(max(0.0, at - began))

    def _label(self, kind: str, name: str | None) -> str:
        known, label = self._names[kind], name or "unknown"
        if label not in known:
            if len(known) >= NAMES:
                return "other"
            known.add(label)
        return label

    # ------------------------------------------------------------ facts

    def _turn_ended(self, fact: TurnEnded, session: str) -> None:
        outcome = fact.outcome
        reason = outcome.reason.value if isinstance(outcome, Stopped) else ""
        self._turns.labels(type(outcome).__name__.lower(), reason).inc()
        self._end((session, "turn"), fact.at, self._turn_seconds)

    def _model_called(self, fact: ModelCalled, session: str) -> None:
        self._begin((session, fact.step, fact.round, fact.attempt), fact.at)

    def _model_replied(self, fact: ModelReplied, session: str) -> None:
        self._reply(fact.reply, "ok" if fact.paid else "answered")
        label = self._label("model", fact.reply.model)
        self._end((session, fact.step, fact.round, fact.attempt), fact.at, self._model_seconds.labels(label))

    def _model_attempted(self, fact: ModelAttempted, session: str) -> None:
        if fact.reply is not None:
            self._reply(fact.reply, "discarded")
        else:
            self._replies.labels("unknown", "error").inc()

    def _side_replied(self, fact: SideReplied, session: str) -> None:
        self._reply(fact.reply, "side" if fact.paid else "answered")

    def _reply(self, reply: Any, status: str) -> None:
        label, usage = self._label("model", reply.model), reply.usage
        self._replies.labels(label, status).inc()
        if status == "answered":
            return
        counts = {"input": usage.input, "output": usage.output, "cached": usage.cached, "reasoning": usage.reasoning}
        for kind, count in counts.items():
            if count:
                self._tokens.labels(label, kind).inc(count)
        if usage.cost:
            self._cost.labels(label).inc(usage.cost)

    def _tool_called(self, fact: ToolCalled, session: str) -> None:
        self._begin(fact.call, fact.at)

    def _tool_returned(self, fact: ToolReturned, session: str) -> None:
        label = self._label("tool", fact.name)
        self._calls.labels(label, fact.result.status).inc()
        self._end(fact.call, fact.at, self._tool_seconds.labels(label))

    def _tool_decided(self, fact: ToolDecided, session: str) -> None:
        self._verdicts.labels(self._label("tool", fact.name), type(fact.verdict).__name__.lower()).inc()
