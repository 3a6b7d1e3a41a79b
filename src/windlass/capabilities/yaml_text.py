"""Parses YAML from files that others wrote: no objects, no key twice, and aliases that stay small."""

from __future__ import annotations

from typing import Any

EXTRA = "pip install 'windlass[yaml]'"
ALLOWANCE = 100_000
"""How many items and characters aliases may add to any text."""
GROWTH = 10
"""How many times as large as its text a value may be, once its aliases are written out."""


def parse_yaml(text: str | bytes) -> Any:
    """The value of a YAML text. A mistake raises `ValueError`; a missing extra raises `ImportError`."""
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Refuses a key that is there twice: the second one would silently replace the first."""

        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            keys = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and (key.tag, key.value) in keys:
                    raise ValueError(f"the key {key.value!r} is there twice, in line {key.start_mark.line + 1}")
                keys.add((key.tag, str(key.value)))
            return node

    try:
        value = yaml.load(text, Loader)
        size = _size(value, {})
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"not valid YAML: {' '.join(str(error).split())}") from error
    except RecursionError:
        raise ValueError("not valid YAML: it is nested too deeply") from None
    if size > ALLOWANCE + GROWTH * len(text):
        raise ValueError("not valid YAML: its aliases make it too large")
    return value


def _size(value: Any, known: dict[int, int]) -> int:
    """How many items and characters a value has, if every alias is written out. One inside itself never ends."""
    if not isinstance(value, (list, dict, tuple, set)):
        return 1 + (len(value) if isinstance(value, (str, bytes)) else 0)
    if id(value) not in known:
        items = [part for pair in value.items() for part in pair] if isinstance(value, dict) else value
        known[id(value)] = 1 + sum([_size(item, known) for item in items])
    return known[id(value)]
