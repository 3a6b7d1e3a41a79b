"""How servers differ that speak Chat Completions, one line each."""

from __future__ import annotations

import re

from windlass.messages import Value, digest


class Dialect(Value, frozen=True):
    """What one vendor calls things.

    `key` is the environment variable of its key (none: it needs no key), `thinking` the field of a message that holds
    reasoning, `limit` the one that limits the reply, `call_ids` what it takes as the id of a call.
    """

    vendor: str
    base_url: str | None = None
    key: str | None = None
    thinking: str = "reasoning_content"
    limit: str = "max_tokens"
    seed: str = "seed"
    asks_for_usage: bool = True
    call_ids: str = r".{1,256}"

    def wire_id(self, call: str, vendor_id: str | None) -> str:
        """The id of a call on the wire: the vendor's own, or one made from ours where that is missing or not valid."""
        if vendor_id and re.fullmatch(self.call_ids, vendor_id):
            return vendor_id
        made = digest(call or vendor_id or "")
        return made[:9] if self.vendor == "mistral" else f"call_{made[:24]}"


OPENAI = Dialect("openai", None, "OPENAI_API_KEY", limit="max_completion_tokens", call_ids=r"[\w.:-]{1,40}")
RESPONSES = Dialect("openai-responses", None, "OPENAI_API_KEY", limit="max_output_tokens", call_ids=r"[\w.:-]{1,64}")
COMPATIBLE = Dialect("openai")

DIALECTS = {
    dialect.vendor: dialect
    for dialect in (
        Dialect("openrouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", "reasoning"),
        Dialect("groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY", "reasoning"),
        Dialect("deepseek", "https://api.deepseek.com", "DEEPSEEK_API_KEY"),
        Dialect(
            "mistral",
            "https://api.mistral.ai/v1",
            "MISTRAL_API_KEY",
            thinking="content",
            seed="random_seed",
            asks_for_usage=False,
            call_ids=r"[a-zA-Z0-9]{9}",
        ),
        Dialect("ollama", "http://localhost:11434/v1", thinking="reasoning"),
    )
}
