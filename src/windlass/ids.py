"""Session ids: which ones users may give, and how the sessions of sub-agents are named."""

from __future__ import annotations

from .errors import ConfigError

LONGEST = 512
"""The maximum length of a user's session id, in bytes of UTF-8."""


def check_new_id(session: object) -> None:
    """Raise unless this may be the id of a user's session."""
    check_id(session)
    assert isinstance(session, str)
    if "//" in session:
        raise ConfigError(
            f"session id {session!r} contains '//', which only the ids of sub-agents' sessions may contain; "
            "use another id, or the id of the session that started the sub-agent"
        )
    if "\0" in session:
        raise ConfigError(f"session id {session!r} contains a NUL character, which not every store can keep")


def check_id(session: object) -> None:
    """Raise unless this can be the id of a session, whether of a user's or of a sub-agent's."""
    if not isinstance(session, str):
        raise ConfigError(f"a session id is a str, not of type {type(session).__name__}: {session!r:.80}")
    if not session:
        raise ConfigError("a session id must not be empty; leave it out for a session without a name")
    try:
        size = len(session) if session.isascii() else len(session.encode())
    except UnicodeEncodeError:
        raise ConfigError(f"session id {session!r:.80} contains a lone surrogate and is not valid Unicode") from None
    if size > LONGEST and "//" not in session:
        raise ConfigError(f"session id {session[:40]!r}… has {size} bytes in UTF-8; the maximum is {LONGEST}")


def child_id(parent: str, call: str, number: int) -> str:
    """The id of the session in which a sub-agent works on a call, at this number of attempts.

    The place is that of the call. The session may be a fork of the one that the call is named after.
    """
    return f"{parent}//{_place(call, number)}"


def old_child_id(parent: str, call: str, number: int) -> str:
    """The same, as versions before format 3 named it."""
    return f"{parent}/{_place(call, number)}"


def _place(call: str, number: int) -> str:
    *_, step, position = call.split("/")
    return f"{step}/{position}" + (f".{number}" if number > 1 else "")
