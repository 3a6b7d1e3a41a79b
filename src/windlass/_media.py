"""Guesses the media type of a file from its content and its name."""

from __future__ import annotations

_BY_CONTENT: tuple[tuple[int, bytes, tuple[str, ...]], ...] = (
    (0, b"\x89PNG\r\n\x1a\n", ("image/png",)),
    (0, b"\xff\xd8\xff", ("image/jpeg",)),
    (0, b"GIF8", ("image/gif",)),
    (8, b"WEBP", ("image/webp",)),
    (0, b"%PDF-", ("application/pdf",)),
    (8, b"WAVE", ("audio/wav",)),
    (0, b"ID3", ("audio/mpeg",)),
    (0, b"\xff\xfb", ("audio/mpeg",)),
    (0, b"fLaC", ("audio/flac",)),
    (0, b"OggS", ("audio/ogg", "video/ogg")),
    (4, b"ftypM4A", ("audio/mp4",)),
    (4, b"ftypheic", ("image/heic",)),
    (4, b"ftypqt", ("video/quicktime",)),
    (4, b"ftyp", ("video/mp4", "audio/mp4")),
    (0, b"\x1aE\xdf\xa3", ("video/webm", "audio/webm")),
)
"""The offset and the bytes that identify a format, and its media types. A container may hold sound or video."""
_NORMAL = {"audio/x-wav": "audio/wav", "audio/mp4a-latm": "audio/mp4", "audio/x-m4a": "audio/mp4"}


def guess_media_types(data: bytes, name: str | None) -> tuple[str, ...]:
    """The possible media types of a file, the most likely first; empty if it cannot be told."""
    for offset, mark, types in _BY_CONTENT:
        if data.startswith(mark, offset):
            return types
    from mimetypes import guess_type

    if guessed := guess_type(name or "")[0]:
        return (_NORMAL.get(guessed, guessed),)
    return ("text/plain",) if _is_text(data) else ()


def _is_text(data: bytes) -> bool:
    try:
        return bool(data) and "\0" not in data.decode()
    except UnicodeDecodeError:
        return False


__all__ = ["guess_media_types"]
