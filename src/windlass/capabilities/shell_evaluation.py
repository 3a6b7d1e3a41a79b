"""What a shell evaluates or sets beside its commands: arithmetic, subscripts, indirect names, variables of loops."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from .globs import UNKNOWN

_COMPARING = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})
_NUMBER = re.compile(r"\d+|0[xX][0-9a-fA-F]+")
_OWN = re.compile(r"(?!npm_|.*_proxy$)[a-z][a-z0-9_]*")
"""Names of variables that scripts have for themselves. Those in capitals may tell other programs what to do."""


def evaluates(node: dict[str, Any]) -> bool:
    """Whether a node may run what a variable or a quoted text holds: the shell evaluates such text once more."""
    index = node.get("Index")
    if index is not None and _literal(index) not in ("@", "*") and not _is_number(index):
        return True
    match node.get("Type"):
        case "ParamExp":
            return _expands_more(node)
        case "ArithmExp" | "ArithmCmd":
            return not _is_number(node.get("X"))
        case "LetClause" | "CStyleLoop":
            return True
        case "UnaryTest":
            return node.get("Op") in ("-v", "-R")
        case "BinaryTest":
            return node.get("Op") in _COMPARING and not (_is_number(node["X"]) and _is_number(node["Y"]))
        case _:
            return False


def variables_set(node: dict[str, Any]) -> Iterator[str]:
    """Variables that a node sets without an assignment. The variable of a loop counts unless it is in small letters."""
    expansion = node.get("Exp") or {}
    match node.get("Type"):
        case "WordIter" if not _OWN.fullmatch(node["Name"]["Value"]):
            yield node["Name"]["Value"]
        case "ParamExp" if expansion.get("Op") in ("=", ":="):
            yield node["Param"]["Value"]
        case "CoprocClause" if node.get("Name"):
            yield _literal(node["Name"]) or UNKNOWN
        case _:
            pass
    number = (node.get("N") or {}).get("Value", "") if "Word" in node else ""
    if number.startswith("{"):  # {name}>file
        yield number.strip("{}")


def _expands_more(node: dict[str, Any]) -> bool:
    """Whether an expansion is indirect, computes, or has quotes or `<(…)` inside, which mean other things elsewhere."""
    expansion, part = node.get("Exp") or {}, node.get("Slice") or {}
    if node.get("Excl") or expansion.get("Op") == "@":  # ${x@P} runs what the variable holds
        return True
    if not all(_is_number(part[key]) for key in ("Offset", "Length") if part.get(key)):
        return True
    return _has_quotes([expansion.get("Word"), node.get("Repl")])


def _has_quotes(inside: Any) -> bool:
    pending = [inside]
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending += node
        elif isinstance(node, dict):
            if node.get("Type") in ("SglQuoted", "DblQuoted"):
                return True
            if node.get("Type") == "Lit" and re.search(r"[$`'\"\\()]", node.get("Value", "")):
                return True
            pending += node.values()
    return False


def _is_number(node: Any) -> bool:
    """Whether an arithmetic expression has only numbers, no names."""
    match (node or {}).get("Type"):
        case "BinaryArithm":
            return _is_number(node["X"]) and _is_number(node["Y"])
        case "UnaryArithm" | "ParenArithm":
            return _is_number(node["X"])
        case _:
            return _NUMBER.fullmatch(_literal(node)) is not None


def _literal(node: Any) -> str:
    """The text of a word that has no quotes and no expansions, else nothing."""
    parts = (node or {}).get("Parts") or []
    return "".join([part.get("Value", "") for part in parts]) if [part["Type"] for part in parts] == ["Lit"] else ""
