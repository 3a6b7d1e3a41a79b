"""Vendors by name: their addresses and keys, the usual environment variables, and hints for misspelt names."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from openai import AsyncAzureOpenAI, AsyncOpenAI

from windlass import Agent
from windlass.errors import ConfigError
from windlass.models import VENDORS, open_model
from windlass.models.openai.vendors import ollamas_address

from .test_configuration import nobody_has_a_key

__all__ = ["nobody_has_a_key"]

ADDRESSES = {
    "xai": ("https://api.x.ai/v1/", "XAI_API_KEY"),
    "together": ("https://api.together.xyz/v1/", "TOGETHER_API_KEY"),
    "fireworks": ("https://api.fireworks.ai/inference/v1/", "FIREWORKS_API_KEY"),
    "cerebras": ("https://api.cerebras.ai/v1/", "CEREBRAS_API_KEY"),
    "huggingface": ("https://router.huggingface.co/v1/", "HF_TOKEN"),
    "moonshot": ("https://api.moonshot.ai/v1/", "MOONSHOT_API_KEY"),
    "groq": ("https://api.groq.com/openai/v1/", "GROQ_API_KEY"),
}
LOCAL = {
    "ollama": ("http://localhost:11434/v1/", "OLLAMA_API_KEY"),
    "lmstudio": ("http://localhost:1234/v1/", "LMSTUDIO_API_KEY"),
    "vllm": ("http://localhost:8000/v1/", "VLLM_API_KEY"),
}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [key for _, key in (*ADDRESSES.values(), *LOCAL.values())]
    names += [f"{vendor.upper()}_BASE_URL" for vendor in VENDORS]
    names += ["OLLAMA_HOST", "AZURE_OPENAI_ENDPOINT", "AZURE_OPENAI_API_KEY", "OPENAI_API_VERSION", "GOOGLE_API_KEY"]
    names += ["GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION", "GOOGLE_APPLICATION_CREDENTIALS"]
    for name in names:
        monkeypatch.delenv(name, raising=False)


async def client_of(model: Any) -> Any:
    """The SDK's client that a model uses."""
    return model._connection.client()


@pytest.mark.parametrize("vendor", ADDRESSES)
async def test_a_vendor_has_its_address_and_its_key(vendor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    address, key = ADDRESSES[vendor]
    with pytest.raises(ConfigError, match=f"model='{vendor}:m' has no key: set {key}, or pass api_key=… or client=…"):
        Agent(f"{vendor}:m")
    monkeypatch.setenv(key, "secret")
    model = Agent(f"{vendor}:m").model
    assert model.name == f"{vendor}:m"
    client = await client_of(model)
    assert (str(client.base_url), client.api_key) == (address, "secret")
    monkeypatch.setenv(f"{vendor.upper()}_BASE_URL", "https://proxy.example/v1")
    assert str((await client_of(open_model(f"{vendor}:m"))).base_url) == "https://proxy.example/v1/"
    assert str((await client_of(open_model(f"{vendor}:m", base_url="https://a.b/v1"))).base_url) == "https://a.b/v1/"


@pytest.mark.parametrize("vendor", LOCAL)
async def test_a_server_of_your_own_needs_no_key_and_may_have_one(vendor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    address, key = LOCAL[vendor]
    client = await client_of(Agent(f"{vendor}:m").model)
    assert (str(client.base_url), client.api_key) == (address, "none")
    monkeypatch.setenv(key, "secret")
    monkeypatch.setenv(f"{vendor.upper()}_BASE_URL", "http://gpu:9000/v1")
    client = await client_of(open_model(f"{vendor}:m"))
    assert (str(client.base_url), client.api_key) == ("http://gpu:9000/v1/", "secret")


HOSTS = {
    "127.0.0.1:11500": "http://127.0.0.1:11500/v1",
    "gpu.local": "http://gpu.local:11434/v1",
    "0.0.0.0": "http://127.0.0.1:11434/v1",
    "0.0.0.0:8080": "http://127.0.0.1:8080/v1",
    ":8080": "http://127.0.0.1:8080/v1",
    "[::]:8080": "http://[::1]:8080/v1",
    "[fe80::1]:8080": "http://[fe80::1]:8080/v1",
    "::1": "http://[::1]:11434/v1",
    "fe80::2": "http://[fe80::2]:11434/v1",
    "https://ollama.example.com": "https://ollama.example.com/v1",
    "http://gpu:81/ollama/": "http://gpu:81/ollama/v1",
    "http://gpu:11434/v1": "http://gpu:11434/v1",
}


@pytest.mark.parametrize("host", HOSTS)
async def test_ollamas_own_variable_is_read_as_ollama_reads_it(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ollamas_address(host) == HOSTS[host]
    monkeypatch.setenv("OLLAMA_HOST", host)
    assert str((await client_of(open_model("ollama:m"))).base_url) == f"{HOSTS[host]}/"


@pytest.mark.parametrize("host", ["gpu:port", "http://gpu:99999", "http://[::1"])
def test_an_address_of_ollama_that_is_none_is_refused(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", host)
    with pytest.raises(ConfigError, match=r"OLLAMA_HOST=.* is not an address"):
        open_model("ollama:m")


async def test_a_key_of_openai_serves_any_compatible_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "xai-key")
    assert (await client_of(open_model("openai:grok-4", base_url="https://api.x.ai/v1"))).api_key == "xai-key"
    with pytest.raises(ConfigError, match="set XAI_API_KEY"):
        open_model("xai:grok-4")


async def test_azure_is_opened_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigError, match="model='azure:d' has no address: set AZURE_OPENAI_ENDPOINT, or pass base_url=…"
    ):
        Agent("azure:d")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://mine.openai.azure.com/")
    with pytest.raises(ConfigError, match="model='azure:d' has no key: set AZURE_OPENAI_API_KEY, or pass api_key=…"):
        Agent("azure:d")
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "secret")
    client = await client_of(Agent("azure:d").model)
    assert type(client) is AsyncOpenAI
    assert (str(client.base_url), client.api_key) == ("https://mine.openai.azure.com/openai/v1/", "secret")
    monkeypatch.setenv("OPENAI_API_VERSION", "2025-04-01-preview")
    client = await client_of(open_model("azure:d"))
    assert type(client) is AsyncAzureOpenAI
    assert client.max_retries == 0
    whole = "https://mine.openai.azure.com/openai/v1"
    assert str((await client_of(open_model("azure:d", base_url=whole))).base_url) == f"{whole}/"


@pytest.mark.parametrize("version", [None, "2025-04-01-preview"])
async def test_azure_is_asked_at_the_right_path(version: str | None) -> None:
    asked: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request)
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hi."}}
        return httpx2.Response(200, json={"id": "c", "model": "gpt-5", "choices": [choice]})

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    client: AsyncOpenAI = AsyncOpenAI(api_key="k", base_url="https://mine.openai.azure.com/openai/v1", http_client=http)
    if version:
        endpoint = "https://mine.openai.azure.com"
        client = AsyncAzureOpenAI(api_key="k", azure_endpoint=endpoint, api_version=version, http_client=http)
    assert (await Agent(open_model("azure:d", client=client)).run("Hi")).text == "Hi."
    path = f"/openai/deployments/d/chat/completions?api-version={version}" if version else "/openai/v1/chat/completions"
    assert str(asked[0].url) == f"https://mine.openai.azure.com{path}"


def test_vertex_is_opened_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    with pytest.raises(
        ConfigError, match="model='vertex:gemini-3-pro' has no project: set GOOGLE_CLOUD_PROJECT, or pass"
    ):
        Agent("vertex:gemini-3-pro")
    with pytest.raises(
        ConfigError, match="not a Gemini model: open it as 'anthropic:claude-4' with client=AsyncAnthropicV"
    ):
        open_model("vertex:claude-4")
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "mine")
    for place in (None, "europe-west1"):
        model: Any = open_model("vertex:gemini-3-pro", location=place)
        api = model._connection._own._make().client._api_client
        assert (api.vertexai, api.project, api.location) == (True, "mine", place or "global")
    assert model.name == "vertex:gemini-3-pro"
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(ConfigError, match=r"has no credentials: GOOGLE_APPLICATION_CREDENTIALS names"):
        open_model("vertex:gemini-3-pro")
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT")
    by_key: Any = open_model("vertex:gemini-3-pro", api_key="k")
    api = by_key._connection._own._make().client._api_client
    assert (api.vertexai, api.api_key) == (True, "k")
    project: Any = open_model("google:gemini-3-pro", project="other", location="global")
    assert project._connection._own._make().client._api_client.project == "other"


MISSPELT = {
    "opnai:gpt-5": "'openai:gpt-5'",
    "OpenAI:gpt-5": "'openai:gpt-5'",
    "openai/gpt-5": "'openai:gpt-5'",
    "gemini:gemini-3-pro": "'google:gemini-3-pro'",
    "claude:claude-4": "'anthropic:claude-4'",
    "antropic:claude-4": "'anthropic:claude-4'",
    "grok:grok-4": "'xai:grok-4'",
    "grok-4": "'xai:grok-4'",
    "kimi-k2": "'moonshot:kimi-k2'",
    "google-vertex:gemini-3-pro": "'vertex:gemini-3-pro'",
    "hugging_face:m": "'huggingface:m'",
    "lm-studio:m": "'lmstudio:m'",
    "gpt-5": "'openai:gpt-5'",
    "zzz:m": "'vendor:model', such as 'openai:gpt-5'",
}


@pytest.mark.parametrize("name", MISSPELT)
def test_a_misspelt_vendor_gets_a_suggestion(name: str) -> None:
    with pytest.raises(ConfigError, match=f"is not a model: use {MISSPELT[name]}; vendors: openai:…") as caught:
        Agent(name)
    assert repr(name) in str(caught.value)
