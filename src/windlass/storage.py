"""Storage: durable values that capabilities, hooks, tools and the application keep in the store of an agent."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf
from typing import Any, Protocol

from msgspec import Struct, to_builtins
from msgspec.json import Encoder

from .errors import ConfigError
from .messages import Value, json_with_surrogates, plain
from .protocols import Clock, Store, StoredValue, Values

LARGEST = 1_048_576
"""How many bytes of JSON a value may have."""

LONGEST_NAME, LONGEST_KEY, LONGEST_ID = 200, 1024, 512
"""How many bytes of UTF-8 the name of a storage, a key and an id may have."""

_DUST = 1e-9
"""What rounding may add to an amount."""


class Taken(Struct, frozen=True):
    """What `take` and `hold` answer. It is true if the amount was granted.

    `wait` is how many seconds to wait: until the amount can be granted or, if it was borrowed, until it is covered.
    It is `inf` if no time is long enough. `left` is what remains of the limit; after borrowing it may be negative.
    """

    granted: bool
    wait: float = 0.0
    left: float = 0.0

    def __bool__(self) -> bool:
        return self.granted


class Masks(Protocol):
    """Removes secrets."""

    def text(self, text: str) -> str: ...
    def plain(self, value: Any, *, foreign: bool = False) -> Any: ...


class Place(Struct, frozen=True):
    """The store in which values are kept, the clock by which they expire, the mask for secrets, and what cleans the
    answers of people."""

    store: Store
    clock: Clock
    mask: Masks | None = None
    conceals: Sequence[Any] = ()


class Home:
    """Where the storages of an agent keep their values: in its store or, while it works for another agent, in that
    agent's. A collection of hooks has no place until it is part of an agent.

    `declared` are the storages that were opened until the agent was compiled: their names and capabilities.
    """

    def __init__(self, place: Place | None = None) -> None:
        self._place = place
        self._agent: Home | None = None
        self._sealed = False
        self.used = False
        self.declared: list[tuple[str, str | None]] = []

    def open(self, name: str, owner: str | None) -> None:
        """A storage is in use."""
        if self._agent is not None:
            self._agent.open(name, owner)
        self.used = True
        if not self._sealed and (name, owner) not in self.declared:
            self.declared.append((name, owner))

    def move_to(self, place: Place) -> None:
        """Use another place from now on."""
        self._place = place

    def seal(self) -> None:
        """The agent is compiled."""
        self._sealed = True

    def join(self, agent: Home) -> None:
        """Become part of an agent. Raises if it is used and is part of another one."""
        if self.used and self._agent not in (None, agent):
            raise ConfigError(
                "a collection of hooks that uses storage cannot be part of two agents: make it once for each"
            )
        self._agent = agent
        for name, owner in self.declared:
            agent.open(name, owner)

    def place(self) -> Place | None:
        """The place as of now, in this task."""
        if self._agent is not None:
            return self._agent.place()
        return _PLACES.get().get(self, self._place)

    def mask(self, value: Any) -> Any:
        """A JSON value without secrets."""
        place = self.place()
        return value if place is None or place.mask is None else place.mask.plain(value)


_PLACES: ContextVar[Mapping[Home, Place]] = ContextVar("windlass_places", default={})  # noqa: B039 -- never changed


@contextmanager
def placed(home: Home, place: Place) -> Generator[None, None, None]:
    """Inside, the storages of an agent use another place: it works for another agent."""
    token = _PLACES.set({**_PLACES.get(), home: place})
    try:
        yield
    finally:
        _PLACES.reset(token)


class Storage:
    """Durable values under a name, shared by all agents and processes that use the same store and the same name.

    Values are JSON, keys are texts. Every method is atomic, also among processes, and durable when it returns, as far
    as the store is. Time is the time of the agent's clock. A value with `ttl` expires after so many seconds; then it is
    as if it were not there, and `Store.prune` deletes it.
    """

    __slots__ = ("_home", "_owner", "name")

    def __init__(self, name: str, home: Home, owner: str | None = None) -> None:
        self._owner = "" if owner is None else f" of capability {owner!r}"
        _check_text("storage", "the name", name, LONGEST_NAME)
        self.name = name
        self._home = home
        home.open(name, owner)

    def __repr__(self) -> str:
        return f"Storage({self.name!r})"

    # ------------------------------------------------------------ values

    async def get(self, key: str, default: Any = None) -> Any:
        """The value of a key; `default` if there is none, or if it has expired."""
        call = self._call("get", key)
        found = await call.values.read(self.name, key)
        return default if found is None or call.is_over(found) else json.loads(found.data)

    async def put(self, key: str, value: Any, *, ttl: float | None = None) -> None:
        """Set the value of a key: anything that has a JSON form, at most 1 MB. Secrets in it are masked."""
        call = self._call("put", key)
        expires = None if ttl is None else call.now + call.number("ttl", ttl, above=0)
        await call.values.write(self.name, key, StoredValue(call.encode(value), expires), now=call.now)

    async def delete(self, key: str) -> None:
        """Delete a value, a counter or an amount, and the ids that were used with it."""
        call = self._call("delete", key)
        await call.values.write(self.name, key, None, now=call.now)

    async def keys(self, prefix: str = "") -> list[str]:
        """The keys that begin with a text, in the order of their code points."""
        call = self._call("keys", prefix, may_be_empty=True)
        found = await call.values.find(self.name, prefix, data=False)
        return [key for key, value in found if not call.is_over(value)]

    async def items(self, prefix: str = "", *, last: int | None = None) -> dict[str, Any]:
        """The keys that begin with a text, with their values, in the order of their code points.

        With `last`, only the last so many: however many keys there are, only these are read.
        """
        call = self._call("items", prefix, may_be_empty=True)
        if last is not None and (type(last) is not int or last < 0):
            raise call.error(f"last={last!r} must be a whole number, 0 or more")
        found = await call.values.find(self.name, prefix, last=last, now=call.now)
        return {key: json.loads(value.data) for key, value in found if not call.is_over(value)}

    async def clear(self, prefix: str = "") -> int:
        """Delete all keys that begin with a text; returns how many."""
        return await self._call("clear", prefix, may_be_empty=True).values.clear(self.name, prefix)

    # ------------------------------------------------------------ counters

    async def add(self, key: str, n: float = 1, *, once: str | None = None, ttl: float | None = None) -> int | float:
        """Add to a counter and return its new value. `get` reads it, `put` sets it; it begins at 0.

        With `once`, an id that names what is counted, such as the id of a tool call, it is added exactly once: a hook
        that runs again after a crash adds nothing. With `ttl` the counter expires so many seconds after its first
        `add`, and an id is remembered for as long after it was used. Otherwise both stay until they are deleted.
        """
        call = self._call("add", key)
        amount = call.number("n", n)
        lasts = None if ttl is None else call.number("ttl", ttl, above=0)
        until = None if lasts is None else call.now + lasts

        def change(value: StoredValue | None) -> tuple[StoredValue, float]:
            current = call.current(value)
            total = 0 if current is None else json.loads(current.data)
            if isinstance(total, bool) or not isinstance(total, int | float):
                raise call.error(f"the value is not a number but of type {type(total).__name__}")
            total += amount
            return StoredValue(call.encode_number(total), until if current is None else current.expires), total

        total = await call.values.change(self.name, key, change, now=call.now, once=call.id(once), until=until)
        return total if total is not None else await self.get(key, 0)

    # ------------------------------------------------------------ amounts within a limit

    async def take(
        self,
        key: str,
        n: float = 1,
        *,
        limit: float,
        per: float | None = None,
        ttl: float | None = None,
        borrow: bool = False,
        once: str | None = None,
    ) -> Taken:
        """Take an amount if it is within a limit, never more: `taken = await storage.take("calls", limit=60, per=60)`.

        With `per`, what was taken comes back evenly: `limit` within so many seconds, as in a token bucket. With `ttl`,
        all of it comes back at once, so many seconds after the first `take`, as in a fixed window. Otherwise it comes
        back when it is given back, with a negative `n`. `n=0` takes nothing and tells what is left.

        If `taken` is false, nothing was taken; wait for `taken.wait` seconds and try again. With `borrow=True` it is
        always granted, at the expense of later calls, and `wait` says when it is covered: each caller waits once, in
        the order of the calls. With `once`, an id that was granted before takes nothing and is granted.
        """
        call = self._call("take", key)
        bucket = _Bucket(
            call,
            call.number("n", n),
            call.number("limit", limit, above=0),
            None if per is None else call.number("per", per, above=0),
            None if ttl is None else call.number("ttl", ttl, above=0),
            borrow,
        )
        if per is not None and ttl is not None:
            raise call.error("give per=… or ttl=…, not both")
        found = await call.values.change(self.name, key, bucket, now=call.now, once=call.id(once), until=bucket.until)
        return await self.take(key, 0, limit=limit, per=per, ttl=ttl) if found is None else found

    async def hold(self, key: str, holder: str, *, limit: int, ttl: float) -> Taken:
        """Hold one of `limit` permits, for example to limit how many calls run at once; give it back with `release`.

        `holder` is an id, such as the id of the call. Who holds a permit and asks again keeps it, for another `ttl`
        seconds. After that it is free, so that a process that dies does not keep it: choose `ttl` longer than the work
        takes. If none is free, `wait` says when one expires at the latest; it may be given back earlier.
        """
        call = self._call("hold", key)
        most = max(1, int(call.number("limit", limit, above=0)))
        name, until = call.id(holder, "holder"), call.now + call.number("ttl", ttl, above=0)

        def change(value: StoredValue | None) -> tuple[StoredValue | None, Taken]:
            held = call.holders(value)
            if name not in held and len(held) >= most:
                ends = sorted(held.values())
                return value, Taken(False, ends[len(held) - most] - call.now)
            held[name] = until
            return call.hold(held), Taken(True, 0.0, most - len(held))

        found = await call.values.change(self.name, key, change, now=call.now)
        assert found is not None
        return found

    async def release(self, key: str, holder: str) -> None:
        """Give a permit back. It is no error if it has expired."""
        call = self._call("release", key)
        name = call.id(holder, "holder")

        def change(value: StoredValue | None) -> tuple[StoredValue | None, bool]:
            held = call.holders(value)
            if held.pop(name, None) is None:
                return value, False
            return call.hold(held), True

        await call.values.change(self.name, key, change, now=call.now)

    def _call(self, method: str, key: object, *, may_be_empty: bool = False) -> _Call:
        return _Call(self.name, self._owner, self._home.place(), method, key, may_be_empty)


class _Call:
    """A call of a method: its time, and errors that name it."""

    __slots__ = ("_key", "_mask", "_method", "_name", "_owner", "now", "values")

    def __init__(
        self, name: str, owner: str, place: Place | None, method: str, key: object, may_be_empty: bool
    ) -> None:
        self._name = name
        self._owner = owner
        self._method = method
        self._key = key
        if place is None:
            raise self.error("these hooks are not part of an agent yet")
        values: Values | None = getattr(place.store, "values", None)
        if values is None:
            raise self.error(f"the store {type(place.store).__name__} cannot keep values")
        self.values = values
        self.now = place.clock.now()
        self._mask = place.mask
        if not (may_be_empty and key == ""):
            self._text("the key", key, LONGEST_KEY)

    @property
    def _what(self) -> str:
        return f"{self._method}({self._key!r:.80}) in storage {self._name!r}{self._owner}"

    def error(self, text: str) -> ConfigError:
        return ConfigError(f"{self._what}: {text}")

    def is_over(self, value: StoredValue) -> bool:
        """Whether a value has expired."""
        return value.expires is not None and value.expires <= self.now

    def current(self, value: StoredValue | None) -> StoredValue | None:
        """A value, if it has not expired."""
        return None if value is None or self.is_over(value) else value

    def _text(self, name: str, text: object, longest: int) -> str:
        if type(text) is str and 0 < len(text) <= longest >> 2:  # no character has more than four bytes
            checked = text
        else:
            checked = _check_text(self._what, name, text, longest)
        if self._mask is not None and self._mask.text(checked) != checked:
            text = f"{self._method}(…): {name} holds one of the agent's secrets; use a hash of it"
            raise ConfigError(text)
        return checked

    def id(self, given: object, name: str = "once") -> str:
        """An id, or nothing."""
        return "" if given is None and name == "once" else self._text(name, given, LONGEST_ID)

    def number(self, name: str, given: object, *, above: float | None = None) -> int | float:
        """A finite number."""
        if isinstance(given, bool) or not isinstance(given, int | float) or not -inf < given < inf:
            raise self.error(f"{name}={given!r:.80} must be a number")
        if above is not None and given <= above:
            raise self.error(f"{name}={given!r:.80} must be above {above:g}")
        return given

    def encode_number(self, number: float) -> bytes:
        try:
            return json.dumps(plain(number)).encode()
        except TypeError as error:
            raise self.error(f"the counter cannot go there: {error}") from None

    def encode(self, value: object) -> bytes:
        """A value as JSON, without secrets."""
        try:
            if self._mask is None and isinstance(value, Value):  # what Windlass itself made has a JSON form
                data = _encode(value)
            else:
                checked = plain(value)
                if self._mask is not None:
                    checked = self._mask.plain(checked, foreign=True)
                data = json.dumps(checked, separators=(",", ":")).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise self.error(f"the value has no JSON form: {error}") from None
        if len(data) > LARGEST:
            raise self.error(f"the value has {len(data):,} bytes; at most {LARGEST:,} are kept")
        return data

    def fields(self, value: StoredValue | None, name: str, method: str) -> Any:
        """A field of what `take` or `hold` keeps; None if there is nothing."""
        current = self.current(value)
        if current is None:
            return None
        found = json.loads(current.data)
        if not isinstance(found, dict) or name not in found:
            raise self.error(f"the key has a value that {method} did not make: use another key, or delete it")
        return found[name]

    def holders(self, value: StoredValue | None) -> dict[str, float]:
        """Who holds a permit, and until when."""
        found = self.fields(value, "holders", "hold") or {}
        return {name: until for name, until in found.items() if until > self.now}

    def hold(self, holders: dict[str, float]) -> StoredValue | None:
        """The permits as a value; None if nobody holds one."""
        if not holders:
            return None
        return StoredValue(json.dumps({"holders": holders}).encode(), max(holders.values()))


class _Bucket:
    """Takes an amount. What is kept is how much is in use, and since when; so a limit can be changed at any time."""

    __slots__ = ("_borrow", "_call", "_limit", "_n", "_per", "until")

    def __init__(self, call: _Call, n: float, limit: float, per: float | None, ttl: float | None, borrow: bool) -> None:
        self._call = call
        self._n = n
        self._limit = limit
        self._per = per
        self._borrow = borrow
        lasts = per if ttl is None else ttl
        self.until = None if lasts is None else call.now + lasts

    def __call__(self, value: StoredValue | None) -> tuple[StoredValue | None, Taken]:
        used, at = self._call.fields(value, "used", "take") or (0.0, 0.0)
        now, rate = max(self._call.now, at), 0.0 if self._per is None else self._limit / self._per
        used = max(0.0, used - (now - at) * rate)
        after = max(0.0, used + self._n)
        granted = self._borrow or self._n <= 0 or after <= self._limit * (1 + _DUST)
        missing = max(0.0, after - self._limit)
        ends = self._ends(value)
        if missing <= self._limit * _DUST:
            wait = 0.0
        elif rate and (granted or self._n <= self._limit):
            wait = missing / rate + now - self._call.now
        elif ends is not None and (granted or self._n <= self._limit):
            wait = ends - self._call.now
        else:
            wait = inf
        if not granted or not self._n:
            return value, Taken(granted, wait, self._limit - used)
        kept = json.dumps({"used": [after, now]}).encode()
        return StoredValue(kept, now + after / rate if rate else ends), Taken(True, wait, self._limit - after)

    def _ends(self, value: StoredValue | None) -> float | None:
        """When a fixed window ends."""
        current = self._call.current(value)
        if self._per is not None:
            return None
        return self.until if current is None else current.expires


def _encode(value: Value) -> bytes:
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:  # a lone surrogate
        return json_with_surrogates(to_builtins(value, str_keys=True)).encode()


_encoder = Encoder()


def _check_text(owner: str, name: str, text: object, longest: int) -> str:
    if not isinstance(text, str) or not text:
        raise ConfigError(f"{owner}: {name} must be a text, not {text!r:.80}")
    if (size := len(text.encode("utf-8", "surrogatepass"))) > longest:
        raise ConfigError(f"{owner}: {name} has {size:,} bytes; it may have {longest:,}")
    return text
