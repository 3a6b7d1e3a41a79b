"""The output of `show --context`: a bar chart of a model's context window at a step, by origin."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import click
import msgspec

from windlass._text import one_line, visible, visible_id
from windlass.context.prefixes import Filling, Prefix, filling, prefixes
from windlass.context.replay import Call, Description, described, pipelines, requests
from windlass.errors import SessionUnknown, StoreError
from windlass.messages import ModelRequest
from windlass.protocols import Store

from .output import echo_json, echo_styled
from .stores import with_store

BAR = 40
PARTIAL = " ▏▎▍▌▋▊▉"


def show_context(address: str, session: str, step: int, archive: Path | None, as_json: bool) -> None:
    """Print what the model saw at a step of a session."""

    async def work(store: Store) -> dict[str, Any]:
        records = await store.read(session)
        if not records:
            raise SessionUnknown(f"there is no session {session!r}", session=session)
        known = {digest: described(await store.pipeline(digest)) for digest in pipelines(records)}
        calls = list(requests(session, records, known))
        return _context(session, step, archive, calls, known)

    data = with_store(address, work)
    if as_json:
        echo_json(msgspec.json.encode(data).decode())
    else:
        echo_styled(_chart(data))


def _context(
    session: str, step: int, archive: Path | None, calls: list[Call], known: dict[str, Description]
) -> dict[str, Any]:
    at = _place(session, step, calls)
    call, prefix = calls[at], prefixes(calls[: at + 1])[-1]
    request = call.request if archive is None else _archived(archive, session, step)
    found = filling(request, call.usage.input)
    described_by = known.get(call.pipeline)
    prompt = described_by.prompt if described_by is not None else None
    same = prompt is not None and prompt.model == request.model
    window = prompt.window if prompt is not None and same else None
    notes = list(call.inexact) if archive is None else []
    return _data(session, call, prefix, request, found, window, notes)


def _place(session: str, step: int, calls: list[Call]) -> int:
    """The last call of a step among the calls of a session."""
    if not calls:
        raise click.ClickException(f"session {session!r} has no model calls")
    places = [at for at, call in enumerate(calls) if call.step == step]
    if not places:
        steps = sorted({call.step for call in calls})
        known = f"steps {steps[0]} to {steps[-1]}" if len(steps) > 1 else f"step {steps[0]}"
        what = f"no model was called at step {step} of" if 0 < step < steps[-1] else f"there is no step {step} in"
        raise click.ClickException(f"{what} session {session!r}; models were called at {known}")
    return places[-1]


def _archived(path: Path, session: str, step: int) -> ModelRequest:
    from windlass.capabilities import RequestArchive

    archive = RequestArchive(path)
    try:
        return archive.request(session, step)
    except (LookupError, StoreError) as error:
        raise click.ClickException(str(error)) from error
    finally:
        archive.close()


def _data(
    session: str,
    call: Call,
    prefix: Prefix,
    request: ModelRequest,
    found: Filling,
    window: int | None,
    notes: list[str],
) -> dict[str, Any]:
    total = max(sum(found.origins.values()), 1)
    rows = sorted(found.origins.items(), key=lambda item: -item[1])
    return {
        "session": session,
        "step": call.step,
        "turn": call.turn,
        "round": call.round,
        "attempt": call.attempt,
        "model": request.model,
        "tokens": found.tokens,
        "counted_by": "vendor" if found.vendor else "estimate",
        "window": window,
        "stable": prefix.stable,
        "cached": prefix.cached,
        "prefix": prefix.hash,
        "broken": prefix.broken,
        "inexact": notes,
        "origins": [{"origin": name, "tokens": size, "share": round(size / total, 4)} for name, size in rows],
    }


def _chart(data: dict[str, Any]) -> str:
    rows = data["origins"]
    widest = max([len(one_line(row["origin"], 40)) for row in rows], default=0)
    digits = max([len(f"{row['tokens']:,}") for row in rows], default=1)
    room = max(min(BAR, shutil.get_terminal_size().columns - widest - digits - 12), 8)
    most = max([row["tokens"] for row in rows], default=1)
    lines = [_headline(data), ""]
    for row in rows:
        name = click.style(one_line(row["origin"], 40).ljust(widest), bold=True)
        bar = click.style(_bar(row["tokens"] / max(most, 1) * room).ljust(room), fg="cyan")
        lines.append(f"  {name}  {bar}  {row['tokens']:>{digits},}  {row['share']:>5.1%}")
    return "\n".join([*lines, "", *_totals(data)])


def _headline(data: dict[str, Any]) -> str:
    again = f", round {data['round']}" if data["round"] > 1 else ""
    place = f"step {data['step']} (turn {data['turn']}{again})"
    model = visible(data["model"]) if data["model"] else "the model"
    return f"What {model} saw at {place} of session {visible_id(data['session'])}"


def _totals(data: dict[str, Any]) -> list[str]:
    counted = "counted by the vendor" if data["counted_by"] == "vendor" else "estimated"
    tokens, window = data["tokens"], data["window"]
    of = "window size unknown" if not window else f"{tokens / window:.1%} of a window of {window:,}"
    lines = [f"  total   {tokens:>9,} tokens ({counted}), {of}"]
    share = f" ({data['stable'] / max(tokens, 1):.1%})" if data["stable"] else ""
    lines.append(f"  stable  {data['stable']:>9,} tokens at the start are the same as in the previous call{share}")
    lines.append(f"  cached  {data['cached']:>9,} tokens, according to the vendor")
    if (broken := data["broken"]) is not None:
        by = visible(broken.by) if broken.by else "an unknown cause"
        lines.append(f"  broken  by {by} ({visible(broken.kind)}): {visible(broken.detail)}")
    return lines + [f"  not exact: {visible(note)}" for note in data["inexact"]]


def _bar(length: float) -> str:
    """A bar of this length, down to an eighth of a character."""
    whole, eighths = divmod(round(length * 8), 8)
    return "█" * whole + PARTIAL[eighths].strip() or "▏"
