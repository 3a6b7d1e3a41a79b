"""Makes the description in the package's metadata of README.md, without what only a clone of the repository has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


def description(readme: str) -> str:
    """The text of the README: links within the repository become words, pictures and `make` lines go."""
    text = re.sub(r"<picture>.*?</picture>\n*", "", readme, flags=re.DOTALL)
    text = re.sub(r"^!\[[^\]]*\]\((?!https?:)[^)]*\)\n*", "", text, flags=re.MULTILINE)
    text = re.sub(r"^\$ (?:make|git|cd) .*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^```console\n```\n+", "", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^\[\]]+)\]\((?!https?:)[^()]*\)", r"\1", text)
    return re.sub(r";? ?`make [^`]*`[^.\n]*(?=\.)", "", text)


class ReadmeHook(MetadataHookInterface):
    """Sets the field `readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": description(readme)}
