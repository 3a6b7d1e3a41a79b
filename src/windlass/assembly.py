"""The assembly of an agent: the legal values of its options, and its parts compiled to a program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ._hooks.compiled import NO_HOOKS, CompiledHooks
from ._hooks.hooks import Hook
from ._hooks.observers import Observers
from ._hooks.registrar import GivenModel, Registered
from ._hooks.streams import masking
from ._kernel.child_program import mask_of_tree, program_of
from ._kernel.delegation import Delegate
from ._kernel.matchers import check_matchers
from ._kernel.program import BOUNDS, Background, Options, Program, Workers
from ._kernel.scopes import require_scopes
from ._options import (
    APPROVER,
    CRITERIA,
    FLAG,
    MODEL,
    SETTINGS,
    SUBAGENT,
    TEXT,
    TOOLS,
    Domain,
    each,
    instance,
    optional,
    whole,
    with_methods,
)
from .criteria import StepLimit
from .errors import ConfigError
from .events import ModelReplying
from .masking import Mask
from .messages import TextPart
from .outputs import Output, OutputGate, OutputRule
from .pipeline import Pipeline
from .policies import ErrorPolicy
from .protocols import Model, Store
from .storage import Home
from .tools import Tool


def _is_scope(given: object) -> bool:
    """Whether `isinstance` takes it: a class or a union does, a TypedDict and `dict[str, int]` do not."""
    try:
        isinstance(None, given)  # type: ignore[arg-type]
    except TypeError:
        return False
    return not isinstance(given, tuple)


_INSTALLABLE = with_methods("an object with install(registrar)", "install")
CAPABILITY = Domain(
    f"{_INSTALLABLE.text}, or the name of an entry point",
    lambda given: isinstance(given, str) or _INSTALLABLE.holds(given),
)

OPTIONS: dict[str, Domain] = {
    "model": MODEL,
    "tools": TOOLS,
    "system": TEXT,
    "scope": optional(Domain("a class that isinstance takes", _is_scope)),
    "name": TEXT,
    "settings": optional(SETTINGS),
    "criteria": CRITERIA,
    "approvers": each("a list of approvers, each", APPROVER),
    "errors": optional(instance("an ErrorPolicy", ErrorPolicy)),
    "models": each("a list of models, each", MODEL),
    "subagents": each("a list of agents, each", SUBAGENT),
    "capabilities": each("a list of capabilities, each", CAPABILITY),
    "max_steps": optional(whole(1)),
    "per_run_tools": FLAG,
    "measure_hooks": FLAG,
    "pipeline": optional(instance("a Pipeline", Pipeline)),
    "window": optional(whole(1)),
    "tokenizer": optional(Domain("a function from a text to its number of tokens", callable)),
    "clock": optional(
        with_methods("a clock with now, monotonic, sleep and alarm", "now", "monotonic", "sleep", "alarm")
    ),
    **BOUNDS,
}
"""The legal values of an agent's options. `output`, `store` and `secrets` are checked where they are read."""


def compile_program(
    options: Options,
    registered: Registered,
    pipeline: Pipeline,
    output: Output[Any],
    *,
    name: str,
    own: GivenModel,
    system: str,
    tools: Mapping[str, Tool[..., Any]],
    window: int | None,
    max_steps: int | None,
    store: Store,
    home: Home,
    check: Callable[[Program], None],
    scope: Any,
    background: Callable[[], Background],
    measure_hooks: bool = False,
) -> Program:
    """Compile the parts of an agent."""
    model = own.model
    models, brought, texts = _models(name, own, registered.models)
    windows = _windows(model, window, models)
    declared = tuple([agent.as_tool() for agent in registered.subagents])
    _check_names(name, declared, [tool for tool in tools.values() if isinstance(tool, Delegate)])
    mask = mask_of_tree(options.mask, (*tools.values(), *declared))
    rule = _output_rule(name, registered.outputs)
    if rule.mode is not None:
        options = replace(options, settings={"output_mode": rule.mode, **options.settings})
    hooks = _hooks(registered, pipeline, OutputGate(output, rule), mask, measure_hooks)
    sections = _sections(system, registered.instructions)
    criteria = (*pipeline.criteria, *registered.criteria)
    default_limit = None
    if max_steps is not None and not any(isinstance(criterion, StepLimit) for criterion in criteria):
        default_limit = StepLimit(max_steps)
        criteria = (*criteria, default_limit)
    return Program(
        **replace(options, mask=mask, models=models, policy=options.policy.with_rules(registered.error_rules)).given(),
        reveals=tuple(registered.reveals),
        conceals=tuple(registered.conceals),
        brought_models=brought,
        model_texts=texts,
        name=name,
        model=model,
        sections=sections,
        tools=tools,
        declared=declared,
        background=background,
        output_schema=output.schema,
        read_output=None if output.schema is None else output.parse,
        hooks=hooks,
        compactors=tuple(registered.compactors),
        windows=windows,
        criteria=criteria,
        default_limit=default_limit,
        composites=pipeline.composites,
        handlers=pipeline.handlers,
        store=store,
        home=home,
        check=check,
        observers=Observers(),
        scopes=() if scope is None else ((name, scope),),
        workers=Workers(options.max_parallel, name),
    )


def check_program(program: Program, scope: Any, *, per_run_tools: bool) -> None:
    """Raise if a sub-agent needs another scope, or if a hook is limited to tools that do not exist."""
    for delegate in program.below:
        require_scopes(program, scope, program_of(program, delegate))
    if not per_run_tools:
        check_matchers(program)


def _check_names(agent: str, declared: Iterable[Delegate], tools: Iterable[Delegate]) -> None:
    """Raise if a declared agent has the name of another sub-agent: other processes find it by its name."""
    known = {tool.agent: tool for tool in tools}
    for delegate in declared:
        first = known.setdefault(delegate.agent, delegate)
        if first.compiled != delegate.compiled:
            raise ConfigError(f"agent {agent!r} has two sub-agents named {delegate.agent!r}: give one another name")


def _models(
    agent: str, own: GivenModel, given: Iterable[GivenModel]
) -> tuple[dict[str, Model], dict[str, str], dict[str, str]]:
    """The models by name, which capabilities brought them, and the names of those that were opened from a text, by that
    text. The same object or text may be given twice."""
    known = {own.model.name: own}
    for one in given:
        name = one.model.name
        first = known.setdefault(name, one)
        if first.model is not one.model and (first.text is None or first.text != one.text):
            places = f"{_place(first, own)} and {_place(one, own)}"
            raise ConfigError(
                f"agent {agent!r} has two models named {name!r}: {places}. Requests name their model, so give one of "
                "them another name"
            )
    brought = {name: one.capability for name, one in known.items() if one.capability is not None}
    texts = {one.text: name for name, one in known.items() if one.text is not None}
    return {name: one.model for name, one in known.items()}, brought, texts


def _place(given: GivenModel, own: GivenModel) -> str:
    if given is own:
        return "its own model"
    return "one of its models=" if given.capability is None else f"one from capability {given.capability!r}"


def _windows(model: Model, window: int | None, models: Mapping[str, Model]) -> dict[str, int | None]:
    """The context window of each model: as given for the agent's own, otherwise as the model states it."""
    known = {name: getattr(other, "context_window", None) for name, other in models.items()}
    return {**known, model.name: getattr(model, "context_window", None) if window is None else window}


def _output_rule(agent: str, rules: Sequence[tuple[str, OutputRule]]) -> OutputRule:
    """How the typed answer is obtained. Only one capability may say it."""
    if len(rules) > 1:
        names = " and ".join([repr(name) for name, _ in rules])
        raise ConfigError(f"agent {agent!r}: {names} both say how the output is obtained; remove one of them")
    return rules[0][1] if rules else OutputRule()


def _hooks(
    registered: Registered, pipeline: Pipeline, judge: OutputGate, mask: Mask | None, measured: bool
) -> CompiledHooks:
    """All hooks and transformers, with those that check the output and remove the secrets."""
    observers = [Hook("observe", fact, fn, {}) for fact, fn in pipeline.observers]
    hooks = [*[hook for hook in registered.hooks if hook.is_enabled()], *observers]
    transforms = [*registered.transforms]
    if judge.output.schema is not None:
        check = Hook("gate", ModelReplying, judge.check, {"name": "output", "band": "guard", "live": True})
        check.inherit = False
        hooks.append(check)
    if mask is not None:
        transforms.append(masking(mask))
    if not hooks and not transforms and not registered.slots and not measured:
        return NO_HOOKS
    return CompiledHooks(hooks, transforms, registered.slots, measured=measured)


def _sections(system: str, instructions: Iterable[tuple[int, TextPart]]) -> tuple[TextPart, ...]:
    """The sections of the system text, the most stable first."""
    ranked = sorted([(0, TextPart(system)), *instructions], key=lambda ranked: ranked[0])
    return tuple([section for _, section in ranked if section.text])
