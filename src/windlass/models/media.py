"""Images, documents, sound, video and uploaded files: which of them a vendor accepts, and the note that replaces the
others in older messages."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable
from typing import TypeAlias
from urllib.parse import unquote_to_bytes

from windlass.errors import UnsupportedPart
from windlass.messages import MEDIA_PARTS, FilePart, MediaPart, Messages, Part, ToolResultPart

Accepts: TypeAlias = Callable[[MediaPart], bool]

IMAGES = ("image", "image_url")
WORDS = {
    "image": "images as bytes",
    "image_url": "images at a URL",
    "image_file": "uploaded images",
    "document": "documents as bytes",
    "document_url": "documents at a URL",
    "document_file": "uploaded documents",
    "audio": "audio as bytes",
    "audio_url": "audio at a URL",
    "audio_file": "uploaded audio",
    "video": "video as bytes",
    "video_url": "video at a URL",
    "video_file": "uploaded video",
}
"""The forms of content in words."""


def kind_of(part: MediaPart) -> str:
    """The kind of content: image, document, audio or video."""
    if isinstance(part, FilePart):
        kind = part.media_type.partition("/")[0]
        return kind if kind in ("image", "audio", "video") else "document"
    return str(part.__struct_config__.tag)


def form_of(part: MediaPart, vendor: str) -> str:
    """The kind of a part and how it comes: `image` (as bytes), `image_url` or `image_file`.

    It is empty for a file that was uploaded to another vendor.
    """
    if isinstance(part, FilePart):
        return f"{kind_of(part)}_file" if part.vendor == vendor else ""
    return kind_of(part) if part.data is not None or (part.url or "").startswith("data:") else f"{kind_of(part)}_url"


def inline_data(part: MediaPart) -> tuple[str, str] | None:
    """The media type of a part and its bytes in base64; None if it is not inline, but at an address or uploaded."""
    if isinstance(part, FilePart):
        return None
    if part.data is not None:
        return part.media_type, b64encode(part.data).decode()
    url = part.url or ""
    if not url.startswith("data:"):
        return None
    kind, _, data = url.removeprefix("data:").partition(",")
    if not kind.endswith(";base64"):
        data = b64encode(unquote_to_bytes(data)).decode()
    return kind.partition(";")[0] or part.media_type, data


def media_type_of(part: MediaPart) -> str:
    """The media type of a part; a data URL states its own."""
    if not isinstance(part, FilePart) and part.data is None and (part.url or "").startswith("data:"):
        return (part.url or "").removeprefix("data:").partition(",")[0].partition(";")[0] or part.media_type
    return part.media_type


def data_url(part: MediaPart) -> str:
    """The address of a part, or a data URL with its content."""
    if isinstance(part, FilePart):
        return part.id
    if part.data is None:
        return part.url or ""
    return f"data:{part.media_type};base64,{b64encode(part.data).decode()}"


def file_name(part: MediaPart) -> str:
    """The name of a file, made up if it has none."""
    named = getattr(part, "name", None)
    return named or f"{kind_of(part)}.{media_type_of(part).rpartition('/')[2].partition('+')[0]}"


def note(part: MediaPart) -> str:
    """The text that a model reads instead of an older part that its vendor does not accept."""
    kind = {"image": "An image", "document": "A document", "audio": "A sound", "video": "A video"}[kind_of(part)]
    where = getattr(part, "url", None) or ""
    about = [getattr(part, "name", None), media_type_of(part), None if where.startswith("data:") else where]
    return f"({kind} that is not shown here: {', '.join(filter(None, about))})"


def refuse_unsupported(messages: Messages, accepts: Accepts, model: str, forms: Iterable[str]) -> None:
    """Raise if the newest message has a part that the vendor does not accept.

    Older messages are not refused: a conversation that another vendor began must be able to continue.
    """
    for part in messages[-1].parts if len(messages) else ():
        for inner in part.content if type(part) is ToolResultPart else (part,):
            if type(inner) in MEDIA_PARTS and not accepts(inner):  # type: ignore[arg-type]
                raise _refusal(inner, model, forms)


def _refusal(part: Part, model: str, forms: Iterable[str]) -> UnsupportedPart:
    how = [getattr(part, "name", None), getattr(part, "media_type", None)]
    if isinstance(part, FilePart):
        how.append(f"uploaded to {part.vendor}")
    elif getattr(part, "data", None) is None:
        how.append("at a URL")
    text = f"{type(part).__name__} ({', '.join(filter(None, how))})"
    known = ", ".join(WORDS[form] for form in forms) or "text only"
    return UnsupportedPart(
        f"model={model!r} does not accept this part: {text}; it accepts {known}", model=model, part=part
    )


__all__ = [
    "IMAGES",
    "WORDS",
    "Accepts",
    "data_url",
    "file_name",
    "form_of",
    "inline_data",
    "kind_of",
    "media_type_of",
    "note",
    "refuse_unsupported",
]
