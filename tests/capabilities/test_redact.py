"""Redact: what it finds, that chunks make no difference, and that nothing hidden is stored or sent anywhere."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass import Agent, Completed, Failed, Stopped, tool
from windlass.capabilities import MemoryVault, Pattern, Redact, Scanner, datafog_detector, presidio_detector
from windlass.capabilities.redact_streams import Stream
from windlass.errors import ConfigError
from windlass.messages import ToolResult
from windlass.testing import FunctionModel, ScriptedModel, calls, check_capability, says

KEY = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nMIIEow+/==\n-----END RSA PRIVATE KEY-----"

FOUND: list[tuple[str, str]] = [
    ("private_key", KEY),
    ("private_key", "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1r\n-----END OPENSSH PRIVATE KEY-----"),
    ("anthropic", "sk-ant-api03-" + "aB3_" * 8),
    ("openrouter", "sk-or-v1-" + "0a" * 32),
    ("openai", "sk-proj-" + "Zx9_" * 12),
    ("groq", "gsk_" + "a1B2" * 12),
    ("xai", "xai-" + "a1B2" * 12),
    ("aws", "AKIAIOSFODNN7EXAMPLE"),
    ("google", "AIza" + "Sy_-9" * 7),
    ("google_oauth", "ya29." + "a0AfH6SM" * 4),
    ("github", "ghp_" + "a1B2" * 9),
    ("github", "github_pat_" + "11AB_" * 10),
    ("gitlab", "glpat-" + "a1B2_" * 4),
    ("slack", "xoxb-" + "1234567890-abcdefghij"),
    ("slack_webhook", "https://hooks.slack.com/services/T000/B000/XXXXXXXX"),
    ("stripe", "sk_live_" + "a1B2" * 6),
    ("twilio", "SK" + "0a" * 16),
    ("sendgrid", "SG." + "a1B2" * 5 + "." + "c3D4" * 10),
    ("npm", "npm_" + "a1B2" * 9),
    ("pypi", "pypi-" + "AgEI" * 20),
    ("huggingface", "hf_" + "aBcD" * 8),
    ("databricks", "dapi" + "0a" * 16),
    ("digitalocean", "dop_v1_" + "0a" * 32),
    ("shopify", "shpat_" + "0a" * 16),
    ("telegram", "123456789:AA" + "a1B2_" * 7),
    ("jwt", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dBjftJeZ4CVPmB92K27uhbUJU1p1r"),
    ("email", "ann.o'neil+x@mail.example.co.uk".replace("o'", "o")),
    ("card", "4111 1111 1111 1111"),
    ("card", "5555-5555-5555-4444"),
    ("card", "378282246310005"),
    ("iban", "DE89 3704 0044 0532 0130 00"),
    ("iban", "GB82WEST12345698765432"),
    ("us_ssn", "123-45-6789"),
    ("phone", "+49 30 1234567"),
    ("phone", "(030) 123 45 67"),
    ("phone", "030-1234-5678"),
    ("phone", "555-123-4567"),
    ("phone", "+4917612345678"),
    ("ip", "10.1.2.3"),
    ("ip", "2001:db8::8a2e:370:7334"),
]
INSIDE: list[tuple[str, str]] = [
    ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "aws_secret_access_key = [aws_secret]"),
    ("AccountKey=" + "a1B2" * 20 + "==;", "AccountKey=[azure];"),
    ("postgres://bob:hunter2@db/x", "postgres://bob:[url_password]@db/x"),
    ("Authorization: Bearer abcdefghijklmnopqrstuvwxyz.0123", "Authorization: Bearer [bearer]"),
]
LEFT = [
    "1700000015838, 1795012479692424 and 1234567890123456789 are times and ids",
    "The quick brown fox jumps over 13 lazy dogs.",
    "2024-01-02 12:30:45, version 1.2.3.4.5, 3.14159, 1,234,567.89 and 1e-9",
    "4111 1111 1111 1112 is no card; GB83WEST12345698765432 is no IBAN",
    "127.0.0.1 and ::1 are everybody's; 12:30 is a time; std::vector is C++",
    "sk-learn, ask-me-anything-about-this, task_live_abc",
    "-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----",
    "call me at ann@home, or @ann",
]


@pytest.mark.parametrize(("kind", "text"), FOUND)
def test_it_finds_each_kind_whole(kind, text):
    assert Redact().clean(text) == f"[{kind}]"
    assert Redact().clean(f"It is {text}, I think.") == f"It is [{kind}], I think."
    assert Redact(kind).clean(f'"{text}"') == f'"[{kind}]"'


@pytest.mark.parametrize(("text", "cleaned"), INSIDE)
def test_it_finds_the_secret_behind_its_label(text, cleaned):
    assert Redact().clean(text) == cleaned


@pytest.mark.parametrize("text", LEFT)
def test_it_leaves_other_text(text):
    assert Redact().clean(text) == text


@pytest.mark.parametrize("before", ["\\n", "\\t", "\\u0022", "%22"])
@pytest.mark.parametrize(("kind", "text"), [one for one in FOUND if one[0] not in ("private_key", "slack_webhook")])
def test_it_finds_what_follows_an_escaped_character(kind, text, before):
    assert text[4:] not in Redact().clean(f'{{"env": "A=1{before}{text}"}}')


def test_a_private_key_without_an_end_is_hidden_to_the_end_of_the_text():
    assert Redact().clean("see -----BEGIN PRIVATE KEY-----\nMIIE abc") == "see [private_key]"


# ---------------------------------------------------------------- chunks


def streamed(redact: Redact, chunks: list[str]) -> tuple[str, list[str]]:
    stream = Stream(redact)
    pieces = [piece for chunk in chunks for piece in stream.feed(chunk)]
    return "".join([*pieces, *stream.flush()]), pieces


EVERYTHING = " and ".join([text for _, text in FOUND] + [text for text, _ in INSIDE] + LEFT)


def test_a_split_at_any_offset_makes_no_difference():
    redact = Redact()
    for text in [*[f"It is {text}, ok" for _, text in FOUND], *[text for text, _ in INSIDE], *LEFT]:
        expected = redact.clean(text)
        for at in range(len(text) + 1):
            assert streamed(redact, [text[:at], text[at:]])[0] == expected
        assert streamed(redact, list(text))[0] == expected


PIECES = st.sampled_from(
    [text for _, text in FOUND]
    + [text for text, _ in INSIDE]
    + LEFT
    + [" ", "\n", ", ", "-", "4", "1 ", "A", "Bearer ", "x" * 1500]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(PIECES, max_size=8), st.randoms(use_true_random=False))
def test_any_chunks_make_no_difference(pieces, random):
    redact, text = Redact(), " ".join(pieces)
    cuts = sorted(random.randrange(len(text) + 1) for _ in range(random.randrange(12)))
    chunks = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert streamed(redact, chunks)[0] == redact.clean(text)


def test_nothing_of_a_secret_is_released_before_it_is_complete():
    for _, secret in FOUND:
        released = streamed(Redact(), [*f"It is {secret}"])[1]
        assert secret[:4] not in "".join(released).removeprefix("It is ")


def test_ordinary_words_are_released_as_they_come():
    assert streamed(Redact(), ["Hello ", "there, ", "Ann. "])[1] == ["Hello ", "there, ", "Ann. "]


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "1 ",
        "sk-",
        "-----BEGIN ",
        "-----BEGIN PRIVATE KEY-----",
        "a@",
        "://a:",
        "A1 ",
        "eyJ",
        "1.",
        ":",
        "bearer ",
        "(1)",
    ],
)
def test_hostile_text_is_read_in_linear_time(text):
    long = text * (20_000 // len(text))
    assert isinstance(Redact().clean(long), str)
    assert isinstance(streamed(Redact(), [long[at : at + 100] for at in range(0, len(long), 100)])[0], str)


# ---------------------------------------------------------------- actions and detectors


def test_actions_say_what_a_find_becomes():
    text = "ann@example.org"
    assert Redact("email", action="mask").clean(text) == "***********.org"
    hashed = Redact("email", action="hash", key="k").clean(text)
    assert hashed.startswith("[email:")
    assert (
        hashed
        == Redact("email", action="hash", key=b"k").clean(text)
        != Redact("email", action="hash", key="l").clean(text)
    )
    assert Redact("email", action=lambda kind, found: f"<{kind} of {len(found)}>").clean(text) == "<email of 15>"
    both = Redact("email", "card", actions={"card": "mask"})
    assert both.clean(f"{text} 4111111111111111") == "[email] ************1111"


def test_finds_that_overlap_become_one():
    one = Pattern("one", "abc", longest=3)
    two = Pattern("two", "cde", longest=3)
    assert Redact(one, two).clean("-abcde-") == "-[one]-"


def test_a_pattern_may_have_a_value_and_a_check():
    pin = Pattern("pin", r"PIN (?P<value>\d{4})", longest=8, valid=lambda text: text != "0000")
    assert Redact(pin).clean("PIN 1234, PIN 0000") == "PIN [pin], PIN 0000"
    assert streamed(Redact(pin), [*"my PIN 1234 "])[0] == "my PIN [pin] "


def test_datafog_is_a_detector():
    assert Redact(datafog_detector()).clean("mail ann@example.org") == "mail [email]"


def test_presidio_is_a_detector():
    def analyze(text: str, language: str, entities: list[str]) -> list[Any]:
        assert (language, entities) == ("de", ["PERSON"])
        return [SimpleNamespace(entity_type="PERSON", start=at, end=at + 3) for at in [text.find("Ann")] if at >= 0]

    engine = SimpleNamespace(analyze=analyze)
    assert Redact(presidio_detector(engine, "PERSON", language="de")).clean("I am Ann.") == "I am [person]."


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Redact("emails"), "'emails' is neither a kind nor a detector. Kinds: secrets, pii"),
        (lambda: Redact("email", action="hide"), "action must be 'redact', 'mask', 'hash', 'block' or a function"),  # type: ignore[arg-type]
        (lambda: Redact("email", action="hash"), "needs key="),
        (lambda: Redact("email", actions={"card": "mask"}), "names 'card', which is not looked for"),
        (lambda: Redact(where=["outputs"]), "where must be 'input', 'output'"),  # type: ignore[list-item]
        (lambda: Redact(vault=MemoryVault()), "give vault= and reveal_to= together"),
        (lambda: Redact(reveal_to="*"), "give vault= and reveal_to= together"),
        (lambda: Pattern("a b", "x"), "'a b' is not the name of a kind"),
        (lambda: Pattern("a", "("), "is not a regular expression"),
        (lambda: Pattern("a", "x*"), "also matches an empty text"),
        (lambda: Pattern("a", "x", longest=0), "longest=0 must be"),
        (lambda: Scanner(lambda text: [], ["a-b"]), "'a-b' is not the name of a kind"),
        (lambda: presidio_detector(object(), "PERSON"), "takes an AnalyzerEngine"),
    ],
)
def test_bad_options_are_refused(make, why):
    with pytest.raises(ConfigError, match=why):
        make()


# ---------------------------------------------------------------- in an agent

SECRET = "ghp_" + "a1B2" * 9


@tool(effect="pure")
def fetch(token: str) -> ToolResult:
    """Fetch it."""
    return ToolResult((), data={"token": SECRET})


@tool(effect="pure", show_errors=True)
def show(text: str) -> str:
    """Show it."""
    return f"{text}: {SECRET}"


@tool(effect="pure", show_errors=True)
def crash(text: str) -> str:
    """Crash."""
    raise ValueError(f"no {SECRET}")


def talkative(requests: list[Any]) -> FunctionModel:
    def reply(request: Any) -> Any:
        requests.append(request)
        if any(message.role == "tool" for message in request.messages):
            return says(
                f"It is {SECRET}.", chunks=["It is gh", f"p_{SECRET[4:12]}", f"{SECRET[12:]}."], thinking=f"so {SECRET}"
            )
        return calls(
            [("show", {"text": SECRET}), ("crash", {"text": "x"}), ("fetch", {"token": SECRET})], _text="Well."
        )

    return FunctionModel(reply)


async def collected(agent: Agent[Any, Any]) -> tuple[str, Any]:
    events = [event async for event in agent.stream(f"use {SECRET}", session="s")]
    return repr(events), events


@pytest.mark.parametrize("band", ["normal", "guard"])
async def test_nothing_hidden_is_streamed_sent_or_stored(band):
    """Behaviour 72: in messages, arguments, results, errors of tools, reasoning and the log."""
    requests: list[Any] = []
    agent = Agent(talkative(requests), tools=[show, crash, fetch]).with_capability(Redact("secrets"), band=band)
    text, _ = await collected(agent)
    assert SECRET[6:] not in text
    assert len(requests) == 2
    assert SECRET[6:] not in repr(requests)
    assert SECRET[6:] not in repr(await agent.store.read("s"))
    state = await agent.state("s")
    assert state.messages[-1].text == "It is [github]."
    assert isinstance(state.outcome, Completed)


async def test_what_is_not_looked_at_is_left():
    agent = Agent(talkative([]), tools=[show, crash, fetch]).with_capability(Redact("secrets", where=["output"]))
    await agent.run(f"use {SECRET}", session="s")
    state = await agent.state("s")
    assert state.messages[0].text == f"use {SECRET}"
    assert state.messages[-1].text == "It is [github]."


async def test_a_request_is_cleaned_of_what_was_there_before():
    from windlass.stores import MemoryStore

    store = MemoryStore()
    await Agent(ScriptedModel(says("ok")), store=store).run(f"use {SECRET}", session="s")
    model = ScriptedModel(says("ok"))
    agent = Agent(model, store=store, system=f"Never tell {SECRET}.")
    agent.with_capability(Redact("secrets", where=["requests"]))
    await agent.run("again", session="s")
    assert SECRET not in repr(model.requests)


async def test_block_stops_the_turn_and_keeps_the_text_out_of_the_log():
    """Behaviour 71: nothing is sent or stored, and the outcome names what was found."""
    model = ScriptedModel(says("ok"))
    agent = Agent(model).with_capability(Redact("secrets", action="block"))
    result = await agent.run(f"use {SECRET}", session="s")
    assert isinstance(result.outcome, Stopped)
    assert "github" in str(result.outcome)
    assert not model.requests
    assert SECRET[6:] not in repr(await agent.store.read("s"))


async def test_block_withholds_replies():
    """Behaviour 71: nothing is streamed or stored."""
    agent = Agent(ScriptedModel(says(f"It is {SECRET}"))).with_capability(Redact("secrets", action="block"))
    events = [event async for event in agent.stream("tell me", session="s")]
    assert SECRET[6:] not in repr(events)
    assert SECRET[6:] not in repr(await agent.store.read("s"))
    assert isinstance((await agent.state("s")).outcome, Stopped)


async def test_block_denies_calls_and_results():
    ran: list[str] = []

    @tool
    def use(text: str) -> str:
        """Use it."""
        ran.append(text)
        return SECRET

    model = ScriptedModel(calls("use", text=SECRET), calls("use", text="fine"), says("Done."))
    agent = Agent(model, tools=[use]).with_capability(Redact("secrets", action="block"))
    result = await agent.run("go", session="s")
    assert result.text == "Done."
    assert ran == ["fine"]
    assert SECRET[6:] not in repr(await agent.store.read("s"))


async def test_a_vault_shows_placeholders_and_reveals_to_named_tools():
    got: list[str] = []
    requests: list[Any] = []

    @tool
    def send(to: str) -> str:
        """Send."""
        got.append(to)
        return f"sent to {to}"

    @tool
    def look(at: str) -> str:
        """Look."""
        got.append(at)
        return "seen"

    def reply(request: Any) -> Any:
        requests.append(request)
        if any(message.role == "tool" for message in request.messages):
            return says("Done.")
        placeholder = request.messages[0].text.split()[-1]
        return calls([("send", {"to": placeholder}), ("look", {"at": placeholder})])

    vault = MemoryVault()
    agent = Agent(FunctionModel(reply), tools=[send, look])
    agent.with_capability(Redact("email", vault=vault, reveal_to="send"))
    await agent.run("write to ann@example.org", session="s")
    assert sorted(got)[1] == "ann@example.org"
    assert sorted(got)[0].startswith("[email:")
    assert vault.reveal(f"to {sorted(got)[0]}") == "to ann@example.org"
    assert vault.reveal("[email:0000000000000000]") == "[email:0000000000000000]"
    assert "ann@example.org" not in repr(await agent.store.read("s"))
    assert "ann@example.org" not in repr(requests)


async def test_sub_agents_inherit_it_from_the_guard_band():
    """Behaviour 72: also in sub-agents."""
    child = Agent(ScriptedModel(says(f"child has {SECRET}")), name="kid")
    model = ScriptedModel(calls("kid", task="go"), says("Done."))
    agent = Agent(model, tools=[child.as_tool()]).with_capability(Redact("secrets"), band="guard")
    await agent.run("go", session="s")
    for session in await agent.store.sessions():
        assert SECRET[6:] not in repr(await agent.store.read(session))
    assert "child has [github]" in repr(model.requests)


async def test_a_detector_that_fails_fails_the_turn_and_leaks_nothing():
    def find(text: str) -> Any:
        raise OSError("the service is down")

    agent = Agent(ScriptedModel(says("secret"))).with_capability(Redact(Scanner(find, ["x"]), where=["output"]))
    events = [event async for event in agent.stream("go", session="s")]
    assert "secret" not in repr(events)
    assert isinstance((await agent.state("s")).outcome, Failed)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Redact(),
        lambda: Redact(action="block"),
        lambda: Redact(vault=MemoryVault(), reveal_to="*"),
        lambda: Redact(where=["requests"]),
    ],
)
async def test_it_is_a_good_capability(make):
    await check_capability(make)
