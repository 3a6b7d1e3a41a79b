"""Secrets that the application names: wherever one turns up, it is masked before it is recorded."""

from __future__ import annotations

import json
from collections.abc import Iterable

from .errors import ConfigError
from .records import Record, decode, encode

MASK = "•••"
LEAST = 4


class Mask:
    """Takes secrets out of records, and so out of the log, the state, the stream, observers and what a model is told.

    A secret is found as it is and as JSON writes it, also inside the JSON of a call's arguments.
    """

    __slots__ = ("_forms",)

    def __init__(self, secrets: Iterable[str]) -> None:
        forms: set[bytes] = set()
        for secret in secrets:
            if len(secret) < LEAST:
                raise ConfigError(f"a secret is a text of at least {LEAST} characters; a shorter one is everywhere")
            form = secret
            for _ in range(3):
                forms.add(form.encode("utf-8", "surrogatepass"))
                forms.add(json.dumps(form)[1:-1].encode())
                form = json.dumps(form, ensure_ascii=False)[1:-1]
        self._forms = sorted(forms, key=len, reverse=True)

    def __call__(self, record: Record) -> Record:
        """The record without secrets: the same one if it has none."""
        data = encode(record)
        masked = data
        for form in self._forms:
            if form in masked:
                masked = masked.replace(form, MASK.encode())
        return record if masked is data else decode(masked)
