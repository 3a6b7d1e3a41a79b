"""The errors for passes that may not advance a session."""

from __future__ import annotations

from windlass.errors import SessionBusy, SessionConflict, SessionDriven


def described(name: str) -> str:
    """An owner for people: `process 4711 on web-1`."""
    process, _, host = name.partition(":")[2].partition("@")
    return f"process {process} on {host}" if host else repr(name)


def busy(session: str, owner: str) -> SessionBusy:
    """The error for a session that another process is working on."""
    return SessionBusy(
        f"a turn of session {session!r} is running in another process ({described(owner)}); wait for it, make the "
        "agent with busy='queue' or 'steer', or take the session over with takeover=True",
        session=session,
    )


def busy_here(session: str) -> SessionBusy:
    """The error for a session that this process is working on."""
    return SessionBusy(f"a turn of session {session!r} is running in this process; wait for it", session=session)


def driven_by_engine(session: str, engine: str) -> SessionDriven:
    """The error for a pass that is not the engine's."""
    if not engine:
        return SessionDriven(f"no engine drives session {session!r} any more; nothing was written", session=session)
    return SessionDriven(
        f"the engine {engine!r} drives session {session!r}: send messages, answers and cancels through its runner, "
        "such as windlass.engines.temporal.TemporalRunner, or give the session back with its `release`",
        session=session,
    )


def taken_over(session: str, root: str) -> SessionConflict:
    """The error for an append of a pass that is not the latest."""
    which = f"session {session!r}" if session == root else f"session {root!r}, which {session!r} works for,"
    return SessionConflict(f"{which} was taken over by another process or task; nothing was written", session=session)
