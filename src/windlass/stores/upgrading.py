"""Upgrades stores of earlier formats: seals what can be pruned, in sessions whose chain holds."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from windlass.errors import StoreError
from windlass.logs import Batch, Seal

from .batches import unpack
from .chains import START, Chain, pack_seals, stubs
from .reading import ODD, BatchRow


def sealed_rows(session: str, rows: Sequence[BatchRow]) -> list[BatchRow]:
    """The rows of a format 2 log that change: from the first batch that can be or was pruned, to the end.

    None change if the chain is broken, so that it stays broken. The link of a batch that was pruned cannot be checked:
    its records only have to look pruned, and its seals take the place of the old link.
    """
    chain, old, new = Chain(), START, START
    changed: list[BatchRow] = []
    try:
        for row in rows:
            lines = unpack(row.data)
            if row.seals is not None:
                seals, nonce = _old_seals(lines, row.link), b""
                new = chain.link(session, Batch(row.seq, row.size, b"", lines, new, seals))
            elif chain.link(session, Batch(row.seq, row.size, b"", lines, old)) != row.link:
                return []
            else:
                new, seals, nonce = chain.seal(session, row.seq, new, lines)
            old = row.link
            if new != old:
                changed.append(row._replace(link=new, seals=pack_seals(seals), nonce=nonce or None))
    except ODD:
        return []
    return changed


def _old_seals(lines: bytes, link: bytes) -> tuple[Seal, ...]:
    """Seals for a batch that was pruned in the old format."""
    seals = tuple([Seal(index, blake2b(b"%d" % index, digest_size=16, key=link).digest()) for index in stubs(lines)])
    if not seals:
        raise ValueError("it was not pruned")
    return seals


def check_fingerprint(place: str, found: bytes | None, chain: Chain) -> None:
    """Raise unless a store is opened with the key that it was made with."""
    if found == chain.fingerprint:
        return
    if not found:
        why = "was made without a key: open it without one. To use a key, import its sessions into a new store"
    elif chain.fingerprint:
        why = "was made with another key: open it with that key"
    else:
        why = "was made with a key: pass it as `key`, or set WINDLASS_STORE_KEY"
    raise StoreError(f"{place} {why}. Nothing was changed")
