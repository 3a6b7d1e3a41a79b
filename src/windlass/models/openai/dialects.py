"""The dialects of servers that implement Chat Completions."""

from __future__ import annotations

import os
import re
from urllib.parse import SplitResult, urlsplit

from windlass.messages import MediaPart, Value, digest
from windlass.models.media import IMAGES, form_of, media_type_of
from windlass.models.parts import object_text

ELSEWHERE = "-compatible"
"""The suffix of the vendor's name for a compatible server: its opaque parts and OpenAI's must not be mixed."""


THINK_TAGS = ("<think>", "</think>")


class Dialect(Value, frozen=True):
    """How one vendor's API differs.

    `key` is the environment variable of its key (None: it needs no key), and with `key_optional` it may need none.
    `version` is the version of an Azure API that has dated versions, `thinking` the field of a message with the
    reasoning, `effort` the field of a request with the reasoning effort, `limit` the field that limits the reply, and
    `call_ids` a pattern of valid call ids. `strict_tools`: it can guarantee that arguments match their schema;
    `schemas`: it accepts a schema for its answer; `texts`: it accepts several texts in one message; `wants_thinking`:
    it rejects calls without their reasoning; `any_arguments`: it accepts arguments that are not JSON; `states_cost`: it
    states the cost of a reply. `media` are the forms of content other than text that it accepts, `sounds` the media
    types of audio (empty: any), and `files` is the vendor to which uploaded files belong. `lacks` are the common
    settings that the vendor does not have. `tags` mark a thought at the beginning of an answer (None: they are text).
    `listed` is the vendor's name in the price lists, if it differs.
    """

    vendor: str
    base_url: str | None = None
    key: str | None = None
    thinking: str = "reasoning_content"
    limit: str = "max_tokens"
    seed: str = "seed"
    effort: str = "reasoning_effort"
    asks_for_usage: bool = True
    strict_tools: bool = False
    schemas: bool = True
    texts: bool = True
    wants_thinking: bool = False
    any_arguments: bool = False
    states_cost: bool = False
    call_ids: str = r".{1,256}"
    media: tuple[str, ...] = IMAGES
    sounds: tuple[str, ...] = ()
    files: str = ""
    lacks: tuple[str, ...] = ()
    tags: tuple[str, str] | None = THINK_TAGS
    key_optional: bool = False
    version: str = ""
    listed: str = ""

    def accepts(self, part: MediaPart) -> bool:
        """Whether the vendor accepts a part in this form."""
        form = form_of(part, self.files)
        return form in self.media and (form != "audio" or not self.sounds or media_type_of(part) in self.sounds)

    @property
    def name(self) -> str:
        """The prefix of the model's name."""
        return self.vendor.removesuffix(ELSEWHERE)

    def at(self, base_url: str | None) -> bool:
        """Whether an address is the vendor's own, which requires a key; so is a missing one."""
        host = urlsplit(base_url or "").hostname or ""
        return (
            base_url is None or host == urlsplit(self.base_url or "").hostname or bool(_OPENAIS_HOSTS.fullmatch(host))
        )

    def arguments(self, text: str) -> str:
        """The arguments of a call as the server accepts them: many reject a conversation with invalid JSON."""
        return text or "{}" if self.any_arguments else object_text(text)

    def wire_id(self, call: str, vendor_id: str | None) -> str:
        """The id of a call on the wire: the vendor's own, or one derived from ours if it is missing or invalid."""
        if vendor_id and re.fullmatch(self.call_ids, vendor_id):
            return vendor_id
        made = digest(call or vendor_id or "")
        return made[:9] if self.vendor == "mistral" else f"call_{made[:24]}"


OPENAI = Dialect(
    "openai",
    None,
    "OPENAI_API_KEY",
    limit="max_completion_tokens",
    strict_tools=True,
    any_arguments=True,
    call_ids=r"[\w.:-]{1,40}",
    media=(*IMAGES, "document", "document_file", "audio"),
    sounds=("audio/wav", "audio/x-wav", "audio/mpeg", "audio/mp3"),
    files="openai",
    lacks=("top_k",),
    tags=None,
)
AZURE = OPENAI.replace(vendor="azure", key="AZURE_OPENAI_API_KEY", files="azure")
RESPONSES = Dialect(
    "openai-responses",
    None,
    "OPENAI_API_KEY",
    limit="max_output_tokens",
    strict_tools=True,
    any_arguments=True,
    call_ids=r"[\w.:-]{1,64}",
    media=(*IMAGES, "image_file", "document", "document_url", "document_file"),
    files="openai",
    lacks=("stop", "top_k", "presence_penalty", "frequency_penalty", "seed"),
)
COMPATIBLE = Dialect(f"openai{ELSEWHERE}", media=(*IMAGES, "document", "audio", "audio_url", "video", "video_url"))
"""An unknown server; it reports itself what it does not accept."""

DIALECTS = {
    dialect.vendor: dialect
    for dialect in (
        Dialect(
            "openrouter",
            "https://openrouter.ai/api/v1",
            "OPENROUTER_API_KEY",
            thinking="reasoning",
            effort="reasoning",
            states_cost=True,
            media=(*IMAGES, "document", "document_url", "audio", "video", "video_url"),
        ),
        Dialect("groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY", "reasoning", lacks=("top_k",)),
        Dialect(
            "deepseek",
            "https://api.deepseek.com",
            "DEEPSEEK_API_KEY",
            schemas=False,
            texts=False,
            lacks=("top_k", "seed", "service_tier"),
        ),
        Dialect(
            "mistral",
            "https://api.mistral.ai/v1",
            "MISTRAL_API_KEY",
            thinking="content",
            seed="random_seed",
            asks_for_usage=False,
            call_ids=r"[a-zA-Z0-9]{9}",
            media=(*IMAGES, "document", "document_url", "document_file", "audio", "audio_url"),
            files="mistral",
            lacks=("top_k", "service_tier"),
        ),
        Dialect(
            "ollama",
            "http://localhost:11434/v1",
            "OLLAMA_API_KEY",
            thinking="reasoning",
            lacks=("top_k", "service_tier"),
            key_optional=True,
        ),
        Dialect("xai", "https://api.x.ai/v1", "XAI_API_KEY", lacks=("top_k", "service_tier"), tags=None, listed="x-ai"),
        Dialect("together", "https://api.together.xyz/v1", "TOGETHER_API_KEY", media=(*IMAGES, "video", "video_url")),
        Dialect("fireworks", "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
        Dialect(
            "cerebras",
            "https://api.cerebras.ai/v1",
            "CEREBRAS_API_KEY",
            thinking="reasoning",
            limit="max_completion_tokens",
            lacks=("top_k", "presence_penalty", "frequency_penalty"),
        ),
        Dialect("huggingface", "https://router.huggingface.co/v1", "HF_TOKEN"),
        Dialect(
            "moonshot",
            "https://api.moonshot.ai/v1",
            "MOONSHOT_API_KEY",
            wants_thinking=True,
            media=("image", "video"),
            lacks=("top_k", "seed", "service_tier"),
            listed="moonshotai",
        ),
        Dialect(
            "lmstudio",
            "http://localhost:1234/v1",
            "LMSTUDIO_API_KEY",
            media=("image",),
            lacks=("service_tier",),
            key_optional=True,
        ),
        Dialect("vllm", "http://localhost:8000/v1", "VLLM_API_KEY", media=COMPATIBLE.media, key_optional=True),
    )
}
_OPENAIS_HOSTS = re.compile(r"(.+\.)?(openai\.com|azure\.com|azure\.us|azure\.cn)")
_KIMIS_HOSTS = re.compile(r"api\.moonshot\.(ai|cn)")
_OPENAIS_MODELS = re.compile(r"(openai/)?(gpt-(?!oss)|o\d|chatgpt|ft:)")
_BY_PLACE = {
    urlsplit(dialect.base_url or "").netloc: dialect
    for dialect in DIALECTS.values()
    if dialect.vendor not in ("lmstudio", "vllm")  # any server may listen there
}


def chat_dialect(address: str | None, model: str) -> Dialect:
    """The dialect of the server at an address; without an address, OpenAI's.

    An unknown server may need no key. It may be a proxy for OpenAI, whose models require the new name of the limit.
    """
    place = _place(address)
    if _OPENAIS_HOSTS.fullmatch(place.hostname or ""):
        return OPENAI
    if (known := _at_place(place.netloc)) is not None:
        return known
    return COMPATIBLE.replace(
        key=_spare_key(),
        limit=OPENAI.limit if _OPENAIS_MODELS.match(model) else COMPATIBLE.limit,
        wants_thinking=_KIMIS_HOSTS.fullmatch(place.hostname or "") is not None,
    )


def responses_dialect(address: str | None) -> Dialect:
    """The dialect of Responses: OpenAI's own, or that of a compatible server, which may need no key."""
    place = _place(address)
    if _OPENAIS_HOSTS.fullmatch(place.hostname or ""):
        return RESPONSES
    known = _at_place(place.netloc) or COMPATIBLE.replace(key=_spare_key())
    return RESPONSES.replace(
        vendor=f"{RESPONSES.vendor}{ELSEWHERE}",
        base_url=known.base_url,
        key=known.key,
        any_arguments=False,
        states_cost=known.states_cost,
    )


def _at_place(place: str) -> Dialect | None:
    """The dialect of a known server. As with OpenAI's SDK, its key may also be in the variable of OpenAI's key."""
    known = _BY_PLACE.get(place)
    if known is None or known.key is None or os.environ.get(known.key) or _spare_key() is None:
        return known
    return known.replace(key=OPENAI.key)


def _place(address: str | None) -> SplitResult:
    return urlsplit(address or os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com")


def _spare_key() -> str | None:
    """The variable of the key, if it is set: a private server may need no key."""
    return OPENAI.key if os.environ.get(OPENAI.key or "") else None
