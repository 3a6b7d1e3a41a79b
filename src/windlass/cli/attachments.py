"""Turns files that the user attaches to a message into parts of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TypeAlias

import click

from windlass._media import guess_media_types
from windlass.messages import AudioPart, DocumentPart, ImagePart, Message, TextPart, VideoPart

LARGEST = 30_000_000
"""The maximum size of an attached file, in bytes. Vendors accept less or not much more."""

Attached: TypeAlias = TextPart | ImagePart | AudioPart | VideoPart | DocumentPart


def message_with(text: str, files: tuple[str, ...]) -> Message:
    """A user message: the text, and after it the files, each as a part of its type."""
    parts: list[Attached] = [TextPart(text)] if text else []
    return Message("user", (*parts, *[attached(file) for file in files]))


def attached(path: str) -> Attached:
    """A file as a part of a message, by the type of its content; `-` is the standard input."""
    name = "stdin" if path == "-" else Path(path).name
    data = _read(path)
    for media_type in guess_media_types(data, name):
        for part in (ImagePart, AudioPart, VideoPart):
            if media_type.startswith(part.kinds) and media_type != "image/svg+xml":
                return part.from_bytes(data, media_type=media_type, name=name)
        if media_type == "application/pdf":
            return DocumentPart.from_bytes(data, media_type=media_type, name=name)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise click.BadParameter(f"{path!r} is neither text, an image, audio, a video nor a PDF", param_hint="--file")
    return TextPart(f"The file {name}:\n\n{text}")


def _read(path: str) -> bytes:
    try:
        if path == "-":
            data = sys.stdin.buffer.read(LARGEST + 1)
        else:
            with Path(path).open("rb") as file:
                data = file.read(LARGEST + 1)
    except OSError as error:
        raise click.BadParameter(f"{path!r} cannot be read: {error.strerror}", param_hint="--file") from error
    if len(data) > LARGEST:
        raise click.BadParameter(f"{path!r} has more than {LARGEST // 1_000_000} MB", param_hint="--file")
    return data
