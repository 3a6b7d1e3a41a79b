"""What is too large never leaves the process, and tokens are counted as the vendor counts them."""

import asyncio

import pytest

from windlass import Agent, Failed, Injected, ModelCall, ModelRequest, TurnStarting, tool
from windlass.context.budget import Budget, Counter, Meter, estimate_tokens, pieces
from windlass.errors import ConfigError, ContextOverflow
from windlass.messages import Message, Messages, TextPart, Usage, assistant, user
from windlass.models import open_model
from windlass.testing import FunctionModel, ScriptedModel, calls, says

LONG = "word " * 2_000


async def test_a_request_that_is_too_large_is_not_sent_and_the_error_says_what_fills_it():
    asked = []
    agent = Agent(FunctionModel(lambda request: asked.append(request) or says("hi")), window=1_000, system="be kind")

    @agent.inject(TurnStarting)
    def rules(event: TurnStarting) -> str:
        return "the rules " * 40

    result = await agent.run(LONG)
    assert isinstance(result.outcome, Failed)
    assert asked == []
    assert result.outcome.error.type == "ContextOverflow"
    assert "but the limit is 1,000; it was not sent. Largest pieces: user 2,50" in result.outcome.error.message
    with pytest.raises(ContextOverflow) as overflow:
        result.raise_for_error()
    sizes = overflow.value.sizes
    assert [*sizes] == ["user", "rules", "system"]
    assert sizes["rules"] == estimate_tokens("the rules " * 40)


async def test_what_the_answer_may_take_is_kept_free():
    agent = Agent(ScriptedModel(says("hi"), says("hi")), window=3_000, settings={"max_tokens": 1_000})
    assert isinstance((await agent.run(LONG)).outcome, Failed)
    assert (await agent.run("short")).text == "hi"


async def test_a_request_that_a_wrap_makes_too_large_is_not_sent_either():
    from windlass import ModelCall

    agent = Agent(ScriptedModel(says("hi")), window=1_000)

    @agent.wrap(ModelCall)
    async def more(request, call_next):
        return await call_next(request.replace(messages=[*request.messages, user(LONG)]))

    result = await agent.run("short")
    assert isinstance(result.outcome, Failed)
    assert result.outcome.error.type == "ContextOverflow"


def test_the_count_of_a_vendor_corrects_ours_and_an_absurd_one_does_not():
    budget = Budget({"m": 10_000})
    meter = Meter(budget)
    messages = Messages([user(LONG)])
    ours = meter.ours("", (), messages)
    assert meter.theirs(ours, "m") == ours
    meter.learn("m", ours, Usage(input=2 * ours))
    assert meter.theirs(ours, "m") == 2 * ours
    meter.learn("m", ours, Usage(input=3))
    assert meter.theirs(ours, "m") == 2 * ours


async def test_what_vendors_counted_is_learned_from_the_log_of_another_process():
    def reply(request: ModelRequest):
        counted = 3 * sum(size for _, size in pieces(request, Counter()))
        return says("done", usage=Usage(input=counted, output=1))

    store = Agent(FunctionModel(reply)).store
    first = Agent(FunctionModel(reply), window=100_000, store=store)
    await first.run(LONG, session="s")
    other = Agent(FunctionModel(reply), window=4 * estimate_tokens(LONG), store=store)
    result = await other.run(LONG, session="s")
    assert isinstance(result.outcome, Failed)
    assert "ContextOverflow" in result.outcome.error.type


def test_a_tokenizer_of_ones_own_counts():
    counter = Counter(lambda text: len(text.split()))
    assert counter.part(TextPart("one two three")) == 3
    assert counter.message(user("one two")) == 2 + 4


def test_every_message_is_counted_once_however_often_it_is_asked_for():
    counted = []
    meter = Meter(Budget({}, count=lambda text: counted.append(text) or 1))
    items: list[Message] = []
    for number in range(50):
        items += [user(f"q{number}"), assistant(f"a{number}")]
        meter.history(Messages.sharing(items))
    assert len(counted) == 100


def test_an_overlay_and_a_tail_count_and_go_again():
    meter = Meter(Budget({}))
    plain = Messages([user("a" * 400), assistant("b" * 400)])
    size = meter.history(plain)
    more = Messages(plain, overlay={0: user("a" * 800)}, tail=(user("c" * 400),))
    assert meter.history(more) == size + 100 + 105
    assert meter.history(plain) == size


@pytest.mark.parametrize(
    ("name", "window"),
    [
        ("openai:gpt-4o", 128_000),
        ("openai-responses:gpt-4o-2024-08-06", 128_000),
        ("anthropic:claude-opus-4-5-20251101", 200_000),
        ("google:gemini-2.5-flash", 1_048_576),
        ("openai:no-such-model", None),
    ],
)
def test_the_windows_of_models_are_known(name, window):
    assert open_model(name, api_key="k").context_window == window


def test_a_server_of_ones_own_has_a_window_that_nobody_knows():
    assert open_model("openai:gpt-4o", api_key="k", base_url="http://127.0.0.1:1/v1").context_window is None


def test_a_window_has_tokens():
    with pytest.raises(ConfigError, match="window=0"):
        Agent(ScriptedModel(), window=0)


async def test_the_sizes_of_results_and_tools_are_told_by_their_names():
    @tool(effect="pure", inline=True)
    def look() -> str:
        """Look around."""
        return LONG

    agent = Agent(ScriptedModel(calls("look"), says("hi")), tools=[look], window=1_500)
    result = await agent.run("look")
    assert "Largest pieces: result of look 2,50" in result.outcome.error.message
    assert "tool look" in result.outcome.error.message


async def test_of_attempts_side_by_side_each_vendor_is_believed_for_its_own():
    asked = asyncio.Event()

    async def slow(request):
        await asked.wait()
        return says("slow", usage=Usage(input=1000))

    def quick(request):
        asked.set()
        return says("quick", usage=Usage(input=3000))

    agent = Agent(FunctionModel(slow, name="slow"), models=[FunctionModel(quick, name="quick")], window=100_000)

    @agent.wrap(ModelCall)
    async def both(request, call_next):
        replies = await asyncio.gather(call_next(request), call_next(request.replace(model="quick")))
        return replies[0]

    await agent.run("word " * 800)
    factors = agent._compile().budget.factors
    assert factors["slow"] == pytest.approx(1.0, abs=0.05)
    assert factors["quick"] == pytest.approx(3.0, abs=0.1)


def raising(text: str) -> int:
    raise LookupError("no vocabulary")


@pytest.mark.parametrize(
    ("tokenizer", "told"),
    [
        (raising, "tokenizer 'raising' failed: LookupError: no vocabulary"),
        (lambda text: -1, "returned -1; it must return the number of tokens"),
        (lambda text: None, "returned None; it must return the number of tokens"),
    ],
    ids=["raises", "negative", "nothing"],
)
async def test_a_tokenizer_that_fails_is_named(tokenizer, told):
    result = await Agent(ScriptedModel(says("hi")), window=1_000, tokenizer=tokenizer).run("hello")
    assert told in result.outcome.error.message


async def test_a_durable_injection_over_the_reserve_is_as_loud_as_any_other():
    """Behaviour 89: whatever becomes of it, the hook is named and nothing was truncated."""
    agent = Agent(ScriptedModel(says("hi")), injection_reserve=100)

    @agent.inject(TurnStarting)
    def novel(event: TurnStarting) -> Injected:
        return Injected(LONG, durable=True)

    result = await agent.run("hello")
    assert result.outcome.error.type == "InjectionOverflow"
    assert "inject 'novel' adds about 2501 tokens on TurnStarting" in result.outcome.error.message
