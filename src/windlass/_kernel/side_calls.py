"""Side calls: a hook or tool asks a model beside the turn.

The guards look at it; on resume the log answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from windlass._hooks.compiled import CompiledHooks, Point
from windlass._hooks.dispatch import Passage, Site
from windlass._hooks.streams import Transforms, transform_reply
from windlass._hooks.wraps import Kind, compose, passed_request
from windlass.checking import checked_reply, checked_request, is_reply, reply_of
from windlass.context.assembly import request_digest
from windlass.decisions import Answer, Ask, Halt
from windlass.errors import BadReply, ConfigError, HookError, OutputError, name_raiser
from windlass.events import ModelCalling
from windlass.messages import (
    CONTENT_PARTS,
    Message,
    Messages,
    ModelReply,
    ModelRequest,
    as_message,
    as_reply,
    user,
)
from windlass.models.settings import COMMON
from windlass.outcomes import error_value
from windlass.outputs import Output
from windlass.protocols import Model
from windlass.records import HookDecided, HookFailed, Record, SideReplied
from windlass.states import place_of
from windlass.turns import Asker, Turn, name_in_chain

from .journal import Journal
from .limits import Limits
from .retries import with_retries

DEEPEST = 3
"""How many side calls may be inside each other."""

_REPLY = Kind(ModelRequest, "a ModelReply, a Message or a str", is_reply, checked_reply, BadReply)


class SideCalls(Struct, eq=False):
    """The side calls of one pass, each counted among equal ones."""

    _journal: Journal
    _limits: Limits
    hooks: CompiledHooks
    _resumed: bool
    _counts: dict[str, int] = {}

    async def ask(
        self, site: Site, asker: Asker, model: Any, messages: Any, options: dict[str, Any]
    ) -> Any:
        """What a model replies to a hook or tool: a value if it asks for one of some type, else the
        whole reply."""
        kind, repairs = options.get("output"), options.pop("repairs", 0)
        if kind is None or isinstance(kind, Mapping):
            return await self._reply(site, asker, model, messages, options)
        if isinstance(repairs, bool) or not isinstance(repairs, int) or repairs < 0:
            raise ConfigError(f"turn.ask(repairs={repairs!r}): give a whole number, 0 or more")
        wanted = _output(kind)
        given = list(_messages(messages))
        while True:
            reply = await self._reply(
                site, asker, model, given, {**options, "output": wanted.schema}
            )
            try:
                return wanted.parse(reply.text)
            except OutputError as error:
                if reply.finish == "length":
                    text = (
                        f"the reply to {asker.by!r} was cut off (finish=length): raise max_tokens"
                    )
                    raise OutputError(text) from error
                if not repairs:
                    raise
                repairs -= 1
                given += [reply.message, user(f"{error}. Reply with JSON only.")]

    async def _reply(
        self, site: Site, asker: Asker, model: Any, messages: Any, options: dict[str, Any]
    ) -> ModelReply:
        """What a model replies. It is recorded and charged, and served from the log on resume."""
        if len(asker.chain) > DEEPEST:
            names = " → ".join([name_in_chain(link) for link in asker.chain])
            raise _refused(asker, f"side calls are nested deeper than {DEEPEST}: {names}")
        program = self._journal.program
        asked: Any = program.models.get(model) if isinstance(model, str) else model
        if not hasattr(asked, "reply"):
            raise ConfigError(
                f"turn.ask needs a Model or the name of one of the agent's models, got {model!r}"
            )
        request = _request(asked, asker, messages, options)
        fingerprint = request_digest(request)
        key = self._key(asker, fingerprint)
        if self._resumed and asker.recorded:
            known = self._recorded_reply(key, fingerprint)
            if known is not None:
                return known
        if not asker.recorded:
            site = cast(Site, Unrecorded(site))
        return await self._make(
            SideCall(self._journal, self._limits, site, self.hooks, asker, asked, request, key),
            fingerprint,
        )

    def _recorded_reply(self, key: str, fingerprint: str) -> ModelReply | None:
        """The reply to the same question that the log has."""
        turn = self._journal.fold.turn
        for side in turn.sides if turn is not None else ():
            if (side.key, side.fingerprint) == (key, fingerprint):
                return side.reply
        return None

    async def _make(self, call: SideCall, fingerprint: str) -> ModelReply:
        """Make a side call that the log does not have."""
        return await call.make(fingerprint)

    def _key(self, asker: Asker, fingerprint: str) -> str:
        """Who asks, about what, and its number among equal questions: the order of other questions
        changes nothing."""
        place = f"{asker.event}:{place_of(self._journal.fold, asker.about)}:{asker.by}"
        counted = f"{place}:{fingerprint}"
        self._counts[counted] = number = self._counts.get(counted, 0) + 1
        return f"{place}#{number}"


def _refused(asker: Asker, text: str) -> HookError:
    """The error of a side call that is not made, in the name of the hook that asked, if it was
    one."""
    return HookError(text, hook="" if isinstance(asker.chain[-1], str) else asker.by)


def _request(model: Model, asker: Asker, messages: Any, options: dict[str, Any]) -> ModelRequest:
    """The request as the asker made it."""
    if unknown := [name for name in options if name not in _OPTIONS]:
        raise ConfigError(
            f"turn.ask does not take {', '.join(map(repr, unknown))}; it takes {', '.join(_OPTIONS)}. Settings that "
            "only one vendor knows go into settings={…}"
        )
    given = _messages(messages)
    system, output, settings = (
        options.pop("system", ""),
        options.pop("output", None),
        options.pop("settings", None),
    )
    if not isinstance(settings, Mapping | None):
        raise ConfigError(f"turn.ask: settings={settings!r} must be a mapping of names to values")
    merged = {**(settings or {}), **options}
    known = ModelRequest("", Messages(), (), model.name, merged, side=asker.by)
    return checked_request(known.replace(system=system, messages=given, output=output), known)


def _messages(messages: Any) -> Sequence[Any]:
    return [as_message(messages)] if _is_one_message(messages) else messages


@lru_cache(maxsize=128)
def _output(kind: Any) -> Output[Any]:
    """The schema and the parser of a type, made once."""
    return Output(kind)


def _is_one_message(messages: Any) -> bool:
    """Whether this is one message: a text, a message, or a list that begins with a text or a part."""
    first = messages[0] if isinstance(messages, list | tuple) and messages else messages
    return isinstance(first, (str, Message, *CONTENT_PARTS)) and (
        first is messages or type(first) is not Message
    )


_OPTIONS = ("system", "settings", "output", *COMMON, "extra")


class SideCall:
    """One side call: through the guards' rewrites and gates, inside their wraps, past their
    transformers.

    A hook that made it, itself or through others, does not meet it.
    """

    __slots__ = (
        "_journal", "_limits", "_model_wraps", "about", "asker", "attempts", "fingerprint", "judged", "key", "model",
        "point", "refusal", "request", "said", "site", "standing", "transforms",
    )  # fmt: skip

    def __init__(
        self,
        journal: Journal,
        limits: Limits,
        site: Site,
        hooks: CompiledHooks,
        asker: Asker,
        model: Model,
        request: ModelRequest,
        key: str,
    ) -> None:
        self._journal = journal
        self._limits = limits
        self.site = site
        self.asker = asker
        self.model = model
        self.request = self.judged = request
        self.key = key
        self.about = f"side:{key}"
        self.fingerprint = ""
        guards = [
            h for h in hooks.all if h.event is ModelCalling and h.band == "guard" and self._meets(h)
        ]
        self.point = Point(ModelCalling, guards) if guards else None
        self.transforms = Transforms([t for t in hooks.transforms if t.band == "guard"])
        self._model_wraps = hooks.model_wraps
        self.attempts = 0
        self.standing: ModelReply | None = None
        self.said: ModelReply | None = None
        self.refusal: HookError | None = None

    def _meets(self, hook: object) -> bool:
        return not any(hook is link for link in self.asker.chain)

    async def make(self, fingerprint: str) -> ModelReply:
        """The reply that the asker gets, and the log."""
        self.fingerprint = fingerprint
        reply = None
        if self.point is not None:
            passage = self._passage(self.point, self.request, self.about)
            self.judged = await self._rewritten(passage)
            reply = await self._judge(passage)
        answered = reply is not None
        if reply is None:
            program = self._journal.program
            reply = await with_retries(self._in_wraps, self._tried, program.policy, program.clock)
        if self.transforms and (self.said is None or reply.message is not self.said.message):
            reply = transform_reply(self.transforms.on(self.judged), reply)
        paid = not answered and reply is self.standing
        if not paid:
            self._write_attempt()
        self._write(SideReplied(self.key, self.fingerprint, reply, self.asker.by, paid))
        if self.asker.recorded:
            await self._journal.commit()
        mask = self._journal.mask
        return reply if mask is None else mask.value(reply)  # the same as from the log

    # ------------------------------------------------------------ the guards

    def _passage(self, point: Point, request: ModelRequest, about: str) -> Passage:
        turn: Turn[Any] = Turn(self.site, asker=self.asker)
        return Passage(point, ModelCalling(request, turn), self.site, about)

    async def _rewritten(self, passage: Passage) -> ModelRequest:
        """The request as the guards let it leave."""
        try:
            request: ModelRequest = (await passage.rewrite()).request
        except HookError as error:
            effect, took = "side call refused", passage.took
            self._write(
                HookFailed(error.hook or "?", "ModelCalling", error_value(error), effect, took=took)
            )
            raise
        return request if request.side else request.replace(side=self.asker.by)

    async def _judge(self, passage: Passage) -> ModelReply | None:
        """The guards' answer instead of the model's, if they give one.

        A refusal is raised; here an `Ask` is one.
        """
        verdict = await passage.judge()
        if passage.answers:
            self._write(
                HookDecided(
                    "ModelCalling", passage.about, verdict, passage.answers, took=passage.took
                )
            )
        if isinstance(verdict, Answer):
            return as_reply(verdict.value)
        if isinstance(verdict, Halt | Ask):
            reason = (
                verdict.reason
                if isinstance(verdict, Halt)
                else f"a person cannot be asked here: {verdict.question}"
            )
            self.refusal = _refused(
                self.asker, f"a guard refused the side call of {self.asker.by!r}: {reason}"
            )
            raise self.refusal
        return None

    # ------------------------------------------------------------ the wraps, and the model

    async def _in_wraps(self) -> ModelReply:
        """What leaves the outermost wrap. A refusal stands whatever a wrap makes of it."""
        wraps = [
            h for h in self._model_wraps if (h.band == "guard" or h.side_calls) and self._meets(h)
        ]
        if not wraps:
            return await self._attempt(self.judged)
        onion = compose(
            wraps,
            self._attempt,
            self.site,
            _REPLY,
            self._guarded,
            lambda _: (self.about, self.asker.chain),
        )
        try:
            given = await onion.first(self.judged, onion.inner)
            reply: ModelReply = given if is_reply(given) else onion.checked(given)
        except Exception as error:
            self._write_attempt()
            if self.refusal is None:
                onion.raised(error)
            raise self.refusal from None
        if self.refusal is not None:
            raise self.refusal
        return reply

    def _guarded(self, request: ModelRequest, given: ModelReply) -> ModelReply:
        """What leaves the guard band counts as what the model said, if it was asked."""
        if self.standing is not None:
            self.standing = given
        return given

    async def _attempt(self, request: ModelRequest) -> ModelReply:
        """One attempt: what the guards have not judged goes to them first, then the limits are
        checked."""
        program = self._journal.program
        if request is not self.judged:
            request = passed_request(request, self.judged)
        self._write_attempt()
        self.attempts += 1
        if request is not self.judged and self.point is not None:
            answer = await self._judge(
                self._passage(self.point, request, f"{self.about}/attempt.{self.attempts}")
            )
            if answer is not None:
                return answer
        model = self.model if request.model == self.model.name else program.model_for(request)
        program.budget.of(model).check(request)
        if request.output is not None and "output_mode" in request.settings:
            from windlass.models.outputs import with_output_mode

            model = with_output_mode(model, request)
        reply = reply_of(model.name, await self._replied(model, request))
        reply = transform_reply(self.transforms.on(request), reply)
        self.standing = self.said = reply
        return reply

    async def _replied(self, model: Model, request: ModelRequest) -> Any:
        """What the model replies, within the limits."""
        limits, asker = self._limits, self.asker
        if limits.exist("model") and (stopped := limits.stop_before("model")) is not None:
            self.refusal = _refused(asker, f"{asker.by!r} may not ask a model: {stopped.detail}")
            raise self.refusal
        try:
            return await model.reply(request)
        except Exception as error:
            name_raiser(error, "")
            raise

    def _tried(self) -> int:
        """How many attempts were made, by wraps and retries together."""
        return self.attempts

    # ------------------------------------------------------------ the log

    def _write_attempt(self) -> None:
        """An attempt that a wrap did not let stand was paid for: it is recorded, and never
        served."""
        if self.standing is not None:
            key, reply = f"{self.key}/attempt.{self.attempts}", self.standing
            self.standing = None
            self._write(SideReplied(key, self.fingerprint, reply, self.asker.by))

    def _write(self, record: Record) -> None:
        if self.asker.recorded:
            self._journal.record_side(record)


class Unrecorded:
    """The site of a pass whose turn is over, for a side call that is prepared: guards look at it,
    nothing is kept."""

    closed = False

    def __init__(self, site: Site) -> None:
        self._site = site

    async def ask(self, asker: Asker, model: Any, messages: Any, options: dict[str, Any]) -> Any:
        """A guard that looks at what is prepared may ask, too."""
        return await self._site.ask(replace(asker, recorded=False), model, messages, options)

    def record(self, record: Record) -> None:
        """Forget it."""

    def keep(self, *writes: Any) -> None:
        """Forget them."""

    def note(self, asker: Asker, kind: str, data: Any) -> None:
        """Forget it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._site, name)


# ---------------------------------------------------------------- fingerprints
