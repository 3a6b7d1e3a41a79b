"""What may go wrong in a simulation, and how often."""

from __future__ import annotations

from random import Random
from typing import Any

from msgspec import Struct, structs

from windlass.errors import ConfigError

from .grammar import ERRORS, Reply

_KINDS = ("model", "cuts", "tools", "store", "crashes", "cancels", "steering", "delays", "refusals")


class Faults(Struct, frozen=True):
    """How often something goes wrong where it may. 0 turns a kind off, 1 is always.

    - `model`: a model call raises an error of a vendor; `cuts`: a streamed reply breaks off.
    - `tools`: a tool fails, before or after it did its work.
    - `store`: a write fails, before or after it was made.
    - `crashes`: the process dies at a write, before or after it was made.
    - `cancels`, `steering`: somebody cancels the turn, or sends a message into it; counted at writes.
    - `delays`: a write, or work in a thread, takes time. Models and tools always take time, up to `latency` seconds.
    - `refusals`: a person does not simply approve: rejects, edits, responds, or lets the question wait.

    Each seed has some of these kinds and not others, so that some sessions have many faults and some have none.
    """

    model: float = 0.08
    cuts: float = 0.08
    tools: float = 0.08
    store: float = 0.02
    crashes: float = 0.04
    cancels: float = 0.01
    steering: float = 0.02
    delays: float = 0.2
    refusals: float = 0.4
    latency: float = 1.0

    def __post_init__(self) -> None:
        for kind in _KINDS:
            rate: Any = getattr(self, kind)
            if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
                raise ConfigError(f"Faults({kind}={rate!r}) must be a number from 0 to 1")
        if not self.latency >= 0:
            raise ConfigError(f"Faults(latency={self.latency!r}) must be 0 or more seconds")

    @classmethod
    def none(cls) -> Faults:
        """Nothing goes wrong, and people approve. Models and tools still take time."""
        return cls(**dict.fromkeys(_KINDS, 0.0))


def some_of(faults: Faults, random: Random) -> Faults:
    """Those that one seed has."""
    on = random.getrandbits(len(_KINDS)) if random.random() < 0.9 else 0
    return structs.replace(faults, **{kind: 0.0 for place, kind in enumerate(_KINDS) if not on >> place & 1})


class Chances:
    """Draws what goes wrong in one session."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        one = faults
        self._write = one.store + one.crashes + one.cancels + one.steering + one.delays

    def seconds(self, random: Random) -> float:
        """How long something takes: mostly little, sometimes much."""
        return round(random.random() ** 3 * self._faults.latency, 3)

    def write(self, random: Random) -> dict[str, Any] | None:
        """What happens at a write."""
        at = random.random()
        if at >= self._write:
            return None
        faults = self._faults
        for name, rate in (("crash", faults.crashes), ("error", faults.store)):
            if at < rate:
                return {name: "before" if random.random() < 0.5 else "after"}
            at -= rate
        for name, rate in (("cancel", faults.cancels), ("steer", faults.steering)):
            if at < rate:
                return {name: self.seconds(random)}
            at -= rate
        return {"takes": self.seconds(random)} if faults.delays else None

    def thread(self, random: Random) -> float | None:
        """How long work in a thread waits before it starts."""
        return self.seconds(random) if random.random() < self._faults.delays else None

    def tool(self, random: Random) -> dict[str, Any] | None:
        """What happens to a call of a tool."""
        chosen: dict[str, Any] = {}
        if takes := self.seconds(random):
            chosen["before"] = takes
        if random.random() < 0.25 and (takes := self.seconds(random)):
            chosen["after"] = takes
        if random.random() < self._faults.tools:
            chosen["fails"] = "before" if random.random() < 0.5 else "after"
        return chosen or None

    def model(self, random: Random, reply: Reply, *, streamed: bool) -> Reply:
        """What becomes of a model's reply."""
        if takes := self.seconds(random):
            reply["takes"] = takes
        at = random.random()
        if at < self._faults.model:
            reply = {"error": random.choice(list(ERRORS)), "takes": takes}
        elif streamed and at < self._faults.model + self._faults.cuts:
            reply["cut"] = random.randint(0, 3)
        return reply

    def unwilling(self, random: Random) -> bool:
        """Whether a person does something else than to approve at once."""
        return random.random() < self._faults.refusals
