"""Mistakes of configuration are found when a model or an agent is made, alike for all vendors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from windlass import Agent
from windlass.errors import ConfigError
from windlass.messages import Messages, ModelRequest, ToolSpec, user
from windlass.models import PricedModel, open_model
from windlass.models.bedrock.families import family, model_fields
from windlass.testing import ScriptedModel

from .serving import asked, asking
from .test_billing import tape
from .test_costs import bedrock, chat, claude, gemini, responses
from .wires import ANTHROPIC, BEDROCK, CHAT, CLAUDE, GOOGLE, RESPONSES

KEYS = {
    "openai": "OPENAI_API_KEY",
    "openai-chat": "OPENAI_API_KEY",
    "openai-responses": "OPENAI_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
    "groq": "GROQ_API_KEY",
    "deepseek": "DEEPSEEK_API_KEY",
    "mistral": "MISTRAL_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
    "google": "GEMINI_API_KEY",
    "bedrock": "AWS_BEARER_TOKEN_BEDROCK",
}
WIRES = [
    pytest.param(CHAT, chat, "gpt-5", id="chat"),
    pytest.param(RESPONSES, responses, "gpt-5", id="responses"),
    pytest.param(ANTHROPIC, claude, "claude-sonnet-4-5", id="anthropic"),
    pytest.param(GOOGLE, gemini, "gemini-2.5-flash", id="google"),
    pytest.param(BEDROCK, bedrock, CLAUDE, id="bedrock"),
]


@pytest.fixture(autouse=True)
def nobody_has_a_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    more = ("GOOGLE_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE", "OPENAI_BASE_URL", "AWS_ACCESS_KEY_ID")
    for name in (*KEYS.values(), *more):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    for name in ("HOME", "XDG_CONFIG_HOME", "ANTHROPIC_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))


@pytest.mark.parametrize("vendor", KEYS)
def test_an_agent_without_a_key_is_refused_when_it_is_made(vendor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for made in (lambda: Agent(f"{vendor}:m"), lambda: Agent(ScriptedModel("Hi."), models=[f"{vendor}:m"])):
        with pytest.raises(ConfigError, match=f"model='{vendor}:m' has no (key|credentials): set {KEYS[vendor]}"):
            made()
    assert open_model(f"{vendor}:m", api_key="k").name == f"{vendor}:m"
    monkeypatch.setenv(KEYS[vendor], "k")
    assert Agent(f"{vendor}:m").model.name == f"{vendor}:m"


@pytest.mark.parametrize("vendor", [*[name for name in KEYS if name not in ("google", "bedrock")], "ollama"])
def test_a_server_of_your_own_needs_no_key(vendor: str) -> None:
    assert Agent(open_model(f"{vendor}:m", base_url="http://localhost:8000/v1")).model.name == f"{vendor}:m"


@pytest.mark.parametrize("vendor", ["openai", "openai-responses", "groq"])
def test_the_address_of_a_vendor_needs_its_key(vendor: str) -> None:
    address = "https://api.groq.com/openai/v1" if vendor == "groq" else "https://api.openai.com/v1"
    with pytest.raises(ConfigError, match="has no key"):
        open_model(f"{vendor}:m", base_url=address)
    with pytest.raises(ConfigError, match="has no key: set OPENROUTER_API_KEY"):
        open_model("openai-responses:m", base_url="https://openrouter.ai/api/v1")


@pytest.mark.parametrize("vendor", KEYS)
def test_settings_that_nobody_knows_are_refused_when_the_agent_is_made(vendor: str) -> None:
    model = open_model(f"{vendor}:m", api_key="k")
    for wrong, told in (
        ({"temprature": 1}, "unknown settings temprature: the settings are temperature.*did you mean 'temperature'?"),
        ({"extra": 5}, "extra must be a mapping"),
        ({"headers": "x"}, "headers must be a mapping"),
        ({"tool_choice": 5}, "tool_choice=5 must be 'auto', 'required'"),
        ({"tool_choice": []}, r"tool_choice=\[\]"),
        ("hot", "settings must be a mapping"),
    ):
        for refused in (
            lambda wrong=wrong: Agent(model, settings=wrong),
            lambda wrong=wrong: Agent(PricedModel(model, (1, 1)), settings=wrong),
            lambda wrong=wrong: open_model(f"{vendor}:m", api_key="k", settings=wrong),
        ):
            with pytest.raises(ConfigError, match=told):
                refused()
    Agent(model, settings={"temperature": 1, "extra": {"anything": 1}})


def test_a_model_that_cannot_say_is_not_asked_what_it_knows() -> None:
    Agent(ScriptedModel("Hi."), settings={"temprature": 1})


@pytest.mark.parametrize("vendor", KEYS)
def test_options_that_nobody_knows_are_refused(vendor: str) -> None:
    with pytest.raises(ConfigError, match=r"has no option 'api_kee'; did you mean 'api_key'\?"):
        open_model(f"{vendor}:m", api_kee="k")
    with pytest.raises(ConfigError, match=r"it is a setting: use settings=\{'temperature': …}"):
        open_model(f"{vendor}:m", api_key="k", temperature=1)


TOOLS = tuple(ToolSpec(name, "", {"type": "object", "properties": {}}) for name in ("a", "b", "c"))


def told_of(body: dict[str, Any]) -> tuple[set[str], str]:
    """The tools that a request may call, and the rest of what it says, as text."""
    if (allowed := body.get("toolConfig", {}).get("functionCallingConfig")) is not None:
        return set(allowed["allowedFunctionNames"]), allowed["mode"]
    tools = body["toolConfig"]["tools"] if "toolConfig" in body else body["tools"]
    names = [tool.get("name") or (tool.get("function") or tool.get("toolSpec") or {}).get("name") for tool in tools]
    choice = body["toolConfig"]["toolChoice"] if "toolConfig" in body else body["tool_choice"]
    return {name for name in names if name}, json.dumps(choice)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("names", [["a", "b"], ("b", "a"), {"a", "b", "unknown"}])
@pytest.mark.parametrize(("vendor", "opened", "model"), WIRES)
async def test_a_choice_of_several_tools_is_one_of_them(vendor, opened, model, names, streamed) -> None:
    request = ModelRequest("", Messages([user("Hi")]), TOOLS, settings={"tool_choice": names})
    with tape(vendor, model, {}, streamed) as cassette:
        asking_model = opened(cassette.client(), model)
        await asked(asking_model, request, streaming=streamed)
        [sent] = cassette.requests
    tools, choice = told_of(sent.body.json)
    assert tools - {"unknown"} == {"a", "b"}
    assert choice.strip('"') in ("required", "ANY") or choice in ('{"type": "any"}', '{"any": {}}')
    with pytest.raises(ConfigError, match="names no tool of this request; its tools are a, b, c"):
        await asked(asking_model, request.replace(settings={"tool_choice": ["x"]}), streaming=streamed)


@pytest.mark.parametrize(("vendor", "opened", "model"), WIRES)
async def test_a_choice_of_one_tool_is_that_tool_and_an_unknown_one_is_refused(vendor, opened, model) -> None:
    request = ModelRequest("", Messages([user("Hi")]), TOOLS, settings={"tool_choice": "b"})
    with tape(vendor, model, {}, False) as cassette:
        asking_model = opened(cassette.client(), model)
        await asked(asking_model, request, streaming=False)
        [sent] = cassette.requests
    tools, choice = told_of(sent.body.json)
    assert tools == {"b"} or '"b"' in choice
    for wrong in ("bb", "Required"):
        told = (
            f"tool_choice='{wrong}' is neither 'auto', 'required' or 'none' nor a tool of this request; its tools are a"
        )
        with pytest.raises(ConfigError, match=told):
            await asked(asking_model, request.replace(settings={"tool_choice": wrong}), streaming=False)


WORDS = {
    "auto": ("auto", "AUTO", {"type": "auto"}, {"auto": {}}),
    "required": ("required", "ANY", {"type": "any"}, {"any": {}}),
    "none": ("none", "NONE", {"type": "none"}, None),
}


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize(("vendor", "opened", "model"), WIRES)
async def test_the_words_of_a_choice_mean_the_same_for_all_vendors(vendor, opened, model, word) -> None:
    request = ModelRequest("", Messages([user("Hi")]), TOOLS, settings={"tool_choice": word})
    with tape(vendor, model, {}, False) as cassette:
        await asked(opened(cassette.client(), model), request, streaming=False)
        body = cassette.requests[0].body.json
    config = body.get("toolConfig") or {}
    mode = (config.get("functionCallingConfig") or {}).get("mode")
    assert (body.get("tool_choice") or mode or config.get("toolChoice")) in WORDS[word]


# The settings with one name for all vendors, and where each vendor has them; None: it has no such setting.
ALIKE: dict[str, tuple[Any, dict[str, str | None]]] = {
    "top_k": (5, {"chat": None, "responses": None, "anthropic": "top_k", "google": "generationConfig.topK",
                  "bedrock": "additionalModelRequestFields.top_k"}),
    "presence_penalty": (0.5, {"chat": "presence_penalty", "responses": None, "anthropic": None,
                               "google": "generationConfig.presencePenalty", "bedrock": None}),
    "frequency_penalty": (0.5, {"chat": "frequency_penalty", "responses": None, "anthropic": None,
                                "google": "generationConfig.frequencyPenalty", "bedrock": None}),
    "seed": (7, {"chat": "seed", "responses": None, "anthropic": None, "google": "generationConfig.seed",
                 "bedrock": None}),
    "service_tier": ("flex", {"chat": "service_tier", "responses": "service_tier", "anthropic": "service_tier",
                              "google": "serviceTier", "bedrock": "serviceTier.type"}),
    "parallel_tool_calls": (False, {"chat": "parallel_tool_calls", "responses": "parallel_tool_calls",
                                    "anthropic": "tool_choice.disable_parallel_tool_use", "google": None,
                                    "bedrock": None}),
}  # fmt: skip


@pytest.mark.parametrize("setting", ALIKE)
@pytest.mark.parametrize(("vendor", "opened", "model"), WIRES)
async def test_a_setting_has_one_name_and_one_that_a_vendor_lacks_is_refused(vendor, opened, model, setting) -> None:
    value, places = ALIKE[setting]
    place = places[vendor.name]
    request = ModelRequest("", Messages([user("Hi")]), TOOLS, settings={setting: value})
    with tape(vendor, model, {}, False) as cassette:
        made = opened(cassette.client(), model)
        await asked(made, request, streaming=False)
        body = cassette.requests[0].body.json
    if place is None:
        assert "flex" not in str(body)
        assert setting not in str(body)
        with pytest.raises(ConfigError, match=f"model='{made.name}' does not support the setting '{setting}'"):
            Agent(made, settings={setting: value})
        Agent(made, settings={setting: None})
        return
    Agent(made, settings={setting: value})
    found: Any = body
    for name in place.split("."):
        found = found[name]
    assert found == (not value if setting == "parallel_tool_calls" and "disable" in place else value)


def test_top_k_is_in_the_fields_of_the_model_that_has_it() -> None:
    def fields(model: str) -> Any:
        settings = {"top_k": 5, "reasoning": {"mine": 1}, "extra": {}}
        return model_fields(family(model), model, settings)["additionalModelRequestFields"]

    assert fields("us.amazon.nova-pro-v1:0") == {"mine": 1, "inferenceConfig": {"topK": 5}}
    assert fields("meta.llama3-70b") == {"mine": 1}
    with pytest.raises(ConfigError, match="does not support the setting 'top_k'"):
        open_model("bedrock:meta.llama3-70b", api_key="k", settings={"top_k": 5})


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("vendor", "opened", "model"), WIRES)
async def test_headers_are_headers_and_the_body_is_the_body(vendor, opened, model, streamed) -> None:
    extra = {"extra_headers": {"X-Team": "a"}, "extra_body": {"more": {"x": 1}}}
    with tape(vendor, model, {}, streamed) as cassette:
        request = asking(settings={"extra": extra, "headers": {"X-Other": "b"}})
        await asked(opened(cassette.client(), model), request, streaming=streamed)
        [sent] = cassette.requests
    assert (sent.headers["x-team"], sent.headers["x-other"]) == ("a", "b")
    assert sent.body.json["more"] == {"x": 1}
    assert not {"extra_headers", "extra_body", "headers"} & sent.body.json.keys()
