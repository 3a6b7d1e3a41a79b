"""Checks of a session's row that no log covers: that it is still there, and whose pass over the session it names."""

from __future__ import annotations

from typing import Any

from windlass.errors import StoreError

from .chains import Chain
from .reading import ODD
from .shared import Execute
from .tallies import tally_checksum

_LOST = (
    "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM sessions WHERE id = ?) AND ("
    "EXISTS (SELECT 1 FROM tallies WHERE kind = 'sessions' AND session = ?) OR "
    "EXISTS (SELECT 1 FROM cursors WHERE session = ? AND seq > 0) OR "
    "EXISTS (SELECT 1 FROM inbox WHERE session = ? AND taken))"
)
"""Whether something is left of a session that had a row. Entries may wait in an inbox before there is a session.

The row is looked for in the same statement: another process may have made it meanwhile.
"""


def check_absent(execute: Execute, session: str) -> None:
    """Raise `StoreError` if a session without a row was there before. An erased one keeps its row."""
    if execute(_LOST, *[session] * 4):
        raise lost_row(session)


def lost_row(session: str) -> StoreError:
    """The error for a session whose row is gone, although the store has other rows of it."""
    return StoreError(
        f"the row of session {session!r} was deleted behind the store's back: the store still has other rows of it. "
        "Nothing was written; restore the store from a backup, or use another session id"
    )


def count_session(execute: Execute, chain: Chain, session: str) -> None:
    """Note that a session has a row from now on, in the transaction that makes it. Call `check_absent` before."""
    row = ("sessions", session, 1, tally_checksum(chain, "sessions", session, 1))
    execute("INSERT INTO tallies VALUES (?, ?, ?, ?)", *row)


# ---------------------------------------------------------------- the claim in a row


def claim_checksum(chain: Chain, session: str, owner: str, epoch: int, engine: str = "") -> bytes:
    """The checksum of the owner, the epoch and the engine in a session's row.

    A row that nobody ever claimed has an empty one.
    """
    return chain.checksum("claim", session, owner, epoch, *([engine] if engine else ()))


def check_claimed(chain: Chain, session: str, owner: Any, epoch: Any, engine: Any, checksum: Any) -> None:
    """Raise `StoreError` if the owner, the epoch or the engine in a session's row was changed."""
    try:
        if checksum == b"":
            if (owner, epoch, engine) == ("", 0, ""):
                return
        elif claim_checksum(chain, session, owner, epoch, engine) == checksum:
            return
    except ODD:
        pass
    raise StoreError(
        f"session {session!r}: its owner, epoch or engine was changed after it was written. Export it and import it "
        "under another id to go on with it"
    )


def fill_rows(execute: Execute, chain: Chain) -> None:
    """Give the sessions of a store from before format 5 their tallies, and their rows the checksums of claims."""
    for session, owner, epoch in execute("SELECT id, owner, epoch FROM sessions"):
        count_session(execute, chain, session)
        if (owner, epoch) != ("", 0):
            checksum = claim_checksum(chain, session, owner, epoch)
            execute("UPDATE sessions SET claim = ? WHERE id = ?", checksum, session)
