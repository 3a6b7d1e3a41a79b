"""The event loop of a simulation: its time is virtual, it has no descriptors, and it can freeze what has crashed."""

from __future__ import annotations

import asyncio
import heapq
from asyncio import base_events, events
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context
from typing import Any, NoReturn, cast

from .lives import LIFE, Life
from .refusals import refuse
from .threads import in_simulated_thread

QUANTUM = 2.0**-20
"""The smallest step of virtual time, about a microsecond. Times are multiples of it, so that sums of them are exact."""

STUCK = 50_000
"""How many rounds of the loop may pass without any time passing before what still runs is said to spin."""


class SimulatedLoop(base_events.BaseEventLoop):
    """An event loop whose time passes only when nothing can run; then it jumps to the next timer.

    `stalled` is called when there is no timer either: it must make something run. `spins` is called for each process
    that runs on and on without any time passing. The order in which callbacks run is that of every asyncio loop.
    Several sessions may share a loop: none changes the order or the time of another.
    """

    def __init__(self, stalled: Callable[[], bool], spins: Callable[[Life], None]) -> None:
        super().__init__()
        self._spins = spins
        self._now = 0.0
        self._rank = 0
        self._rounds = 0
        self._frozen = False
        self._stalled = stalled
        self._callbacks: deque[events.Handle] = deque()
        self._timers: list[tuple[float, int, events.TimerHandle]] = []

    def time(self) -> float:
        return self._now

    # ------------------------------------------------------------ time

    def _run_once(self) -> None:
        """One round: what is due becomes ready, and all that is ready runs."""
        ready, timers = self._callbacks, self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not ready:
            self._let_time_pass()
        while timers and timers[0][0] <= self._now:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                try:
                    handle._run()
                except SystemExit:
                    if _life_of(handle) is None:
                        raise  # else the task has the exception, too, and only its process ends
        self._rounds += 1
        if self._rounds > STUCK:
            self._stop_spinning()

    def _stop_spinning(self) -> None:
        """No time passes, since something is always ready: end the processes that it belongs to."""
        self._rounds = 0
        lives = {id(life): life for handle in self._callbacks if (life := _life_of(handle)) is not None}
        if not lives:
            raise RuntimeError("the simulation runs for ever without any time passing")
        for life in lives.values():
            self._spins(life)

    def _let_time_pass(self) -> None:
        """Nothing can run: jump to the next timer."""
        if self._timers:
            self._now = max(self._now, self._timers[0][0])
            self._rounds = 0
        elif not self._stalled():
            raise RuntimeError("the simulation has come to a stand: nothing can run, and no timer is set")

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> events.Handle:
        if context is not None and LIFE not in context:
            _inherit(context)
        handle = events.Handle(callback, args, self, context)
        if self._frozen and _is_dead(handle):
            handle.cancel()
        else:
            self._callbacks.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> events.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> events.TimerHandle:
        """Of two timers for the same moment, the one that was set first comes first."""
        if context is not None and LIFE not in context:
            _inherit(context)
        when = -(-when // QUANTUM) * QUANTUM
        timer = events.TimerHandle(when, callback, args, self, context)
        if self._frozen and _is_dead(timer):
            timer.cancel()
        else:
            self._rank += 1
            heapq.heappush(self._timers, (when, self._rank, timer))
        return timer

    # ------------------------------------------------------------ lives

    def create_task(self, coro: Any, *, context: Context | None = None, **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, context=context, **options)
        life = LIFE.get() if context is None else context.get(LIFE)
        if life is not None:
            life.tasks.append(task)
        return task

    def freeze(self, life: Life) -> None:
        """Stop everything that belongs to a life, at once: no `except` and no `finally` runs."""
        life.dead = self._frozen = True
        for handle in (*self._callbacks, *[timer for _, _, timer in self._timers]):
            if _is_dead(handle):
                handle.cancel()

    def abandon(self, lives: Iterable[Life]) -> None:
        """Stop everything."""
        self._frozen = True
        for life in lives:
            life.dead = True
        self._callbacks.clear()
        self._timers.clear()

    # ------------------------------------------------------------ threads and the world outside

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        return asyncio.wrap_future(in_simulated_thread(lambda: func(*args)), loop=self)

    def _process_events(self, event_list: Any) -> None:
        """There are no descriptors."""

    def _write_to_self(self) -> None:
        """There is no thread to wake the loop from."""

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        life = LIFE.get()
        if not self.is_closed() and (life is None or not life.dead):
            self.call_soon(self.create_task, agen.aclose())


def _inherit(context: Context) -> None:
    """A context that was made from nothing belongs to the process that made it, too."""
    context.run(LIFE.set, LIFE.get())


def _life_of(handle: Any) -> Life | None:
    """The process that a callback belongs to."""
    context: Context | None = handle._context
    return None if context is None else context.get(LIFE)


def _is_dead(handle: Any) -> bool:
    life = _life_of(handle)
    return life is not None and life.dead


def _refusing(what: str) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        refuse(what)

    return method


for _name in (
    "create_connection", "create_server", "create_datagram_endpoint", "create_unix_connection", "create_unix_server",
    "connect_accepted_socket", "sock_connect", "sock_accept", "sock_recv", "sock_recv_into", "sock_sendall",
    "sock_sendfile", "getaddrinfo", "getnameinfo", "add_reader", "add_writer", "start_tls", "connect_read_pipe",
    "connect_write_pipe",
):  # fmt: skip
    setattr(SimulatedLoop, _name, _refusing("uses the network"))
for _name in ("subprocess_exec", "subprocess_shell"):
    setattr(SimulatedLoop, _name, _refusing("starts a process"))
setattr(SimulatedLoop, "add_signal_handler", _refusing("waits for a signal"))  # noqa: B010 -- as those above


def running() -> SimulatedLoop:
    """The simulated loop that runs."""
    return cast(SimulatedLoop, asyncio.get_running_loop())
