"""Checks that the prefix of a session's requests is stable, so that vendors can serve it from their caches."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from windlass.context.prefixes import Prefix

if TYPE_CHECKING:
    from windlass.agent import Agent


async def assert_prefix_stable(
    agent: Agent[Any, Any], session: str, *, allow: Collection[str] = ()
) -> tuple[Prefix, ...]:
    """Fail if anything broke the prefix of a session's requests; the error names the cause, the step and the reason.

    `allow` has the intended breaks: kinds (`"compaction"`, `"rewind"`, `"turn"` for parts that disappear with their
    turn, …) and names of hooks or strategies. Parts of a step, and the feedback on a rejected reply, are at the tail
    and break nothing.
    """
    allowed = {allow} if isinstance(allow, str) else set(allow)
    found = await agent.prefixes(session)
    broken = [one for one in found if one.broken is not None and not _allowed(one, allowed)]
    if broken:
        lines = "\n".join(f"  {_describe(prefix)}" for prefix in broken)
        raise AssertionError(f"the prefix of session {session!r} was broken:\n{lines}")
    return found


def _allowed(prefix: Prefix, allowed: set[str]) -> bool:
    assert prefix.broken is not None
    return prefix.broken.kind in allowed or set(prefix.broken.by.split(", ")) <= allowed


def _describe(prefix: Prefix) -> str:
    assert prefix.broken is not None
    by = repr(prefix.broken.by) if prefix.broken.by else "an unknown cause"
    stable = f"{prefix.stable:,} of {prefix.tokens:,} tokens are stable"
    return f"step {prefix.step}: {by} ({prefix.broken.kind}): {prefix.broken.detail}; {stable}"
