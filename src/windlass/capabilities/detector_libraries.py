"""Detectors of other libraries: datafog and Presidio."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from windlass.errors import ConfigError

from .detectors import Scanner


def datafog_detector(*types: str, longest: int = 64) -> Scanner:
    """Detect personal data with the library datafog (extra `pii`), by its types, such as `"EMAIL"` or `"DE_VAT_ID"`.

    Its regular expressions are used, not its models. A kind is the type in lower case.
    """
    os.environ.setdefault("DATAFOG_NO_TELEMETRY", "1")
    try:
        from datafog.engine import scan
    except ImportError as error:
        raise ConfigError(f"datafog_detector needs datafog ({error}): pip install 'windlass[pii]'") from error
    chosen = types or ("EMAIL", "PHONE", "SSN", "CREDIT_CARD", "IP_ADDRESS")

    def find(text: str) -> Iterator[tuple[str, int, int]]:
        for entity in scan(text, engine="regex", entity_types=list(chosen)).entities:
            yield entity.type.lower(), entity.start, entity.end

    return Scanner(find, [kind.lower() for kind in chosen], longest=longest)


def presidio_detector(engine: Any, *types: str, language: str = "en", longest: int = 128) -> Scanner:
    """Detect personal data with an `AnalyzerEngine` of Presidio that you made, by its types, such as `"PERSON"`.

    A kind is the type in lower case.
    """
    if not types or not callable(getattr(engine, "analyze", None)):
        raise ConfigError("presidio_detector takes an AnalyzerEngine and the types to find, such as 'PERSON'")

    def find(text: str) -> Iterator[tuple[str, int, int]]:
        for found in engine.analyze(text=text, language=language, entities=list(types)):
            yield found.entity_type.lower(), found.start, found.end

    return Scanner(find, [kind.lower() for kind in types], longest=longest)
