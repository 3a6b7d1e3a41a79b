"""A recorded store for the tests of the inspector: an outdoor shop's support desk, with everything that can happen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from msgspec import structs

from windlass import (
    Agent,
    Approve,
    Ask,
    Deny,
    ModelCalling,
    ModelReplying,
    Regenerate,
    Stopping,
    ToolCalling,
    TurnStarting,
    Usage,
    Veto,
    tool,
)
from windlass import records as r
from windlass.errors import ModelError
from windlass.evals import Case, checks, evaluate
from windlass.messages import Message, ModelReply, OpaquePart, TextPart, ToolCall, ToolResult
from windlass.outcomes import ErrorValue
from windlass.stores import SQLiteStore
from windlass.testing import FakeClock, ScriptedModel, calls, says

HOSTILE = (
    "<img src=x onerror=alert(1)><script>document.title='owned'</script> \x1b[31mred\x1b[0m \u202egnp.exe\u202c "
    "</pre></div><a href=javascript:alert(1)>click</a> {{7*7}} \u200b\u2066x\u2069"
)
"""What an attacker might get into a transcript."""

CLOCK = FakeClock(auto=True)


async def _work(seconds: float) -> None:
    await CLOCK.sleep(seconds)


@tool(effect="pure")
async def find_order(order: str) -> str:
    """Find an order."""
    await _work(0.2)
    known = {"4417": "Ridge 2 tent, EUR 249.00, delivered 9 Nov", "4421": "Pole set, 4 pcs, EUR 38.50, shipped 12 Nov"}
    return f"order {order}: {known.get(order, 'not found')}"


@tool(effect="pure")
async def find_stock(item: str) -> str:
    """Look into the stock."""
    await _work(0.4)
    return f"{item}: 14 in stock, next delivery Thursday"


@tool(effect="idempotent")
async def refund(order: str, amount: float) -> str:
    """Pay money back."""
    await _work(0.9)
    return f"refunded EUR {amount:.2f} for order {order}, receipt R-{order}-7"


@tool
async def send_mail(to: str, text: str) -> str:
    """Send a mail."""
    await _work(0.6)
    return f"sent to {to}"


@tool
async def scan(path: str) -> str:
    """Read a file that is not there."""
    await _work(0.1)
    raise FileNotFoundError(f"no file {path}")


TOOLS = [find_order, find_stock, refund, send_mail, scan]


def use(tokens: int, out: int, cached: int = 0) -> Usage:
    return Usage(tokens, out, cached=cached, cost=round(tokens * 5e-6 + out * 2e-5 - cached * 4e-6, 6))


def desk(store: Any, *script: Any, name: str = "desk", **options: Any) -> Agent[Any, Any]:
    """The agent at the desk: what it may do is decided by hooks with names that say what they do."""
    options = {"tools": TOOLS, "system": "You help customers of an outdoor shop. Be brief and kind.", **options}
    options = {"measure_hooks": True, **options}
    agent: Agent[Any, Any] = Agent(ScriptedModel(*script, clock=CLOCK), name=name, store=store, clock=CLOCK, **options)

    @agent.inject(TurnStarting, name="customer_profile")
    async def profile(event: Any) -> str:
        await _work(0.09)
        return "Customer ann@fjell.example, with us since 2019, 6 orders, prefers short answers."

    @agent.rewrite(ModelCalling, name="hide_cards", band="guard")
    async def hide_cards(event: Any) -> Any:
        await _work(0.0009)
        first = event.request.messages[0]
        if "4929" not in first.text:
            return None
        asked = TextPart(first.parts[0].text.replace("4929 1203 7781 0042", "[card]"))
        hidden = Message("user", (asked, *first.parts[1:]))
        return event.request.replace(messages=(hidden, *event.request.messages[1:]))

    @agent.gate(ModelReplying, name="no_promises")
    async def no_promises(event: Any) -> Any:
        await _work(0.0017 * len(event.reply.text or "x") / 20)
        return Regenerate("Do not promise a date.") if "tomorrow" in event.reply.text else None

    @agent.gate(ToolCalling, tool="refund", name="refund_limit")
    async def refund_limit(event: Any) -> Any:
        await _work(0.003)
        amount = event.call.arguments["amount"]
        return Ask(f"Refund EUR {amount:.2f} for order {event.call.arguments['order']}?") if amount > 100 else None

    @agent.gate(ToolCalling, tool="refund", mode="shadow", name="fraud_score")
    async def fraud_score(event: Any) -> Any:
        await _work(0.35)
        return Deny("three refunds in thirty days")

    @agent.gate(ToolCalling, tool="send_mail", name="known_recipients")
    async def known_recipients(event: Any) -> Any:
        await _work(0.0014)
        to = event.call.arguments["to"]
        return None if to.endswith("@fjell.example") else Deny(f"{to} is not a customer's address")

    @agent.rewrite(ToolCalling, tool="send_mail", name="add_signature")
    def add_signature(event: Any) -> Any:
        text = event.call.arguments["text"]
        return (
            None
            if "Fjell" in text
            else event.call.replace(arguments={**event.call.arguments, "text": f"{text}\nFjell"})
        )

    return agent


async def record(store: Any, *, rare: bool = True) -> None:
    """Record all sessions in a store, or only those that are fit to be shown. The last ones end a few minutes ago."""
    CLOCK.start, CLOCK._passed = time.time() - 6400, 0.0
    await _small(store)
    await _long(store)
    await _delegation(store)
    await _failures(store)
    await _clerk(store)
    if rare:
        await _kinds(store)
        await _hostile(store)
    await _twins(store)
    await _refund(store)
    await waiting(store)


async def _small(store: Any) -> None:
    talks = [
        ("Is ticket T-81 about the jacket?", "Yes, T-81 is about the blue jacket."),
        ("Is there a strike at the carrier?", "No strike is known."),
        ("Which rope is the lightest?", "The Nano 8.6, at 52 grams per metre."),
        ("Send me the receipt again.", "It is on its way to your address."),
    ]
    for number, (question, answer) in enumerate(talks):
        agent = desk(store, says(answer, delay=1.1 + number / 3, usage=use(520 + number * 90, 24)))
        await agent.run(question, session=f"desk-{8820 + number}")
        await CLOCK.sleep(700)


async def _refund(store: Any) -> None:
    agent = desk(
        store,
        calls(
            [("find_order", {"order": "4417"}), ("find_order", {"order": "4421"}),
             ("find_stock", {"item": "Pole set, 4 pcs"})],
            _text="Let me look at both orders.", _delay=1.3, _usage=use(527, 27),
        ),
        calls(
            [("send_mail", {"to": "ann@fjell.example", "text": "Your refund is being checked."}),
             ("refund", {"order": "4417", "amount": 249})],
            _text="The tent was delivered on 9 November, so it can be refunded.", _delay=1.6, _usage=use(630, 47, 510),
        ),
        says("The poles arrive tomorrow.", delay=1.2, usage=use(810, 19, 620)),
        says("Your EUR 249.00 are on their way back. The poles were shipped.", delay=1.9, usage=use(868, 41, 790)),
        says("Your EUR 249.00 are on their way back, receipt R-4417-7.", delay=1.4, usage=use(930, 22, 860)),
    )  # fmt: skip
    vetoed: list[int] = []

    @agent.gate(Stopping, name="all_answered")
    def all_answered(event: Any) -> Any:
        if vetoed:
            return None
        vetoed.append(1)
        return Veto("The customer also asked for a receipt number.")

    question = (
        "The tent of order 4417 arrived torn and the poles of 4421 are missing. I want my money back for the tent. "
        "My card is 4929 1203 7781 0042."
    )
    waiting = await agent.run(question, session="desk-8841")
    await CLOCK.sleep(372)
    asked = waiting.waiting_for[0]
    await agent.resume("desk-8841", answers={asked.id: Approve(by="eve")})
    await CLOCK.sleep(300)


async def waiting(store: Any) -> None:
    two = calls(
        [("refund", {"order": "4466", "amount": 174}), ("refund", {"order": "4467", "amount": 310})],
        _text="Both need a second pair of eyes.", _delay=1.2, _usage=use(610, 31),
    )  # fmt: skip
    await desk(store, two).run("Give me back the 174 for the rope, and the 310 for the bag.", session="desk-8844")
    await CLOCK.sleep(400)
    one = calls("refund", order="4480", amount=420, _delay=0.9, _usage=use(580, 18))
    await desk(store, one).run(
        "My sleeping bag, order 4480, leaks feathers. I want all of it back.", session="desk-8843"
    )


async def _long(store: Any) -> None:
    def script() -> list[Any]:
        found: list[Any] = []
        for step in range(1, 64):
            tokens = 500 + 160 * (step % 21)
            if step % 17 == 9:
                found.append(
                    calls("send_mail", to=f"who{step}@other.example", text="hello", _delay=0.8, _usage=use(tokens, 20))
                )
            elif step % 13 == 5:
                found.append(calls("scan", path=f"/orders/{step}.csv", _delay=0.7, _usage=use(tokens, 20, tokens // 2)))
            else:
                found.append(
                    calls(
                        "find_order",
                        order=str(4400 + step),
                        _delay=0.6 + step % 5 / 5,
                        _usage=use(tokens, 20, tokens * 3 // 4),
                    )
                )
        return [*found, says("I have compared all of them.", delay=2, usage=use(3600, 80, 3000))]

    await desk(store, *script()).run("Compare every order of this year with every other one.", session="desk-8832")
    await CLOCK.sleep(600)


async def _delegation(store: Any) -> None:
    helper = desk(
        store,
        calls("find_stock", item="rope", _delay=0.6, _usage=use(300, 12)),
        says("14 ropes are left.", delay=0.7, usage=use(360, 9)),
        name="stock",
    )
    lead = desk(
        store,
        calls(
            [("stock", {"task": "How many ropes are left?"}), ("find_order", {"order": "4417"})],
            _delay=0.9, _usage=use(420, 25),
        ),
        says("14 ropes are left, and order 4417 was delivered.", delay=0.8, usage=use(520, 17, 400)),
        name="lead", tools=[*TOOLS, helper.as_tool()],
    )  # fmt: skip
    await lead.run("Plan the restock of ropes.", session="lead-12")
    await CLOCK.sleep(500)


async def _failures(store: Any) -> None:
    broken = desk(store, ModelError("the vendor is overloaded", retryable=False, status=529))
    await broken.run("Where is my rope, order 4466?", session="desk-8836")
    await CLOCK.sleep(200)
    mail = calls("send_mail", to="leo@other.example", text="Your rope has arrived.", _delay=0.9, _usage=use(560, 24))
    done = says("I cannot write to that address.", delay=0.8, usage=use(640, 14, 500))
    await desk(store, mail, done).run(
        "Write to my brother that his rope has arrived: leo@other.example", session="desk-8840"
    )
    await CLOCK.sleep(300)
    turns = [says(f"Answer {n}.", delay=0.9, usage=use(400 + 150 * n, 12, 300)) for n in range(4)]
    agent = desk(store, *turns)
    for n in range(4):
        await agent.run(f"Question {n + 1} about order 4302.", session="desk-8833b")
        await CLOCK.sleep(40)


async def _twins(store: Any) -> None:
    """The same task twice: once the mail is refused, once the agent writes to an address that it may write to."""
    for session, to in (("mail-old", "leo@other.example"), ("mail-new", "leo@fjell.example")):
        agent = desk(
            store,
            calls("find_order", order="4417", _text="Let me look.", _delay=0.8, _usage=use(410, 16)),
            calls("send_mail", to=to, text="Your tent was delivered on 9 November.", _delay=0.9, _usage=use(500, 22)),
            says("I may not write there." if "other" in to else "Leo knows it now.", delay=0.7, usage=use(580, 12)),
        )
        await agent.run("Tell Leo when the tent of order 4417 was delivered.", session=session)
        await CLOCK.sleep(90)


async def _hostile(store: Any) -> None:
    call = calls("send_mail", to=HOSTILE, text=HOSTILE, _text=HOSTILE, _usage=use(100, 10))
    agent = desk(store, call, says(f"{HOSTILE} done", usage=use(120, 10)), name="<b>desk</b>")
    await agent.run(f"{HOSTILE} {'x' * 200_000}", session="hostile")
    await CLOCK.sleep(30)


class WordByWord:
    """Holds the last word back, for it may go on."""

    def __init__(self) -> None:
        self.held = ""

    def feed(self, text: str) -> Sequence[str]:
        head, space, self.held = (self.held + text).rpartition(" ")
        return [head + space] if head else []

    def flush(self) -> Sequence[str]:
        return [self.held]


def clerk(store: Any, *script: Any, limit: bool) -> Agent[Any, Any]:
    """An agent that streams, whose hooks ask models, and whose pipeline changes between two turns."""
    agent: Agent[Any, Any] = Agent(
        ScriptedModel(*script, clock=CLOCK), name="clerk", store=store, clock=CLOCK, tools=[find_order, send_mail],
        models=[ScriptedModel(says("fits", usage=use(140, 3)), name="small")], measure_hooks=True,
    )  # fmt: skip
    agent.transform(name="whole_words")(WordByWord)

    @agent.gate(ModelReplying, name="no_dates", live=True)
    def no_dates(event: Any) -> Any:
        return Regenerate("Name no date.") if "Monday" in event.reply.text else None

    @agent.gate(ToolCalling, tool="find_*", name="fits_the_task", timeout=20, costly=True)
    async def fits(event: Any, turn: Any) -> Any:
        await turn.ask("small", "Does this call fit the task?")

    @agent.wrap(ToolCall, name="note_time")
    async def note_time(call: Any, call_next: Any) -> Any:
        await _work(0.004)
        return await call_next(call)

    if limit:
        agent.gate(ToolCalling, tool="send_mail(to=*@fjell.example)", name="only_staff")(lambda event: None)

        @agent.gate(ModelReplying, name="second_look", on_error="unreviewed")
        async def second_look(event: Any) -> Any:
            await _work(0.7)

    return agent


async def _clerk(store: Any) -> None:
    searched = OpaquePart("acme", {"type": "web_search", "query": "carrier strike"}, mediated=False)
    answer = Message("assistant", (searched, TextPart("There is no strike.")))
    first = clerk(
        store,
        calls("find_order", order="4417", _text="Let me look.", _usage=use(300, 12)),
        says(chunks=["It comes ", "on Mon", "day, surely."], usage=use(360, 14), delay=0.5, chunk_delay=0.2),
        says(chunks=["It is ", "on its ", "way."], usage=use(390, 8), delay=0.4, chunk_delay=0.2),
        limit=False,
    )  # fmt: skip
    async with first.stream("Where is my tent, order 4417?", session="clerk-3") as stream:
        async for _ in stream:
            pass
    await CLOCK.sleep(90)
    second = clerk(store, ModelReply(answer, use(420, 9)), limit=True)
    async with second.stream("Is there a strike?", session="clerk-3") as stream:
        async for _ in stream:
            pass
    await CLOCK.sleep(100)


async def _kinds(store: Any) -> None:
    """A log with records of the kinds that are rare."""
    at, session = CLOCK.now(), "kinds"
    error = ErrorValue("TimeoutError", "took too long")
    log: list[r.Record] = [
        r.SessionOpened(agent="desk", pipeline="p"),
        r.HistoryImported((Message("user", (TextPart("earlier"),)),), agent="desk", withheld=1),
        r.TurnStarted(1, Message("user", (TextPart("Show me everything."),)), "t1"),
        r.MessageAdded(),
        r.Noted("audit", "checked", {"score": 3}),
        r.SlotSet("mood", "busy", by="mood_hook"),
        r.HookFailed("slow_hook", "StepStarting", error, "skipped", took=1.5),
        r.ModelAttempted(1, 1, 1, error=error),
        r.SideReplied("k", "f", ModelReply(Message("assistant", (TextPart("side"),))), by="critic"),
        r.ModelReplied(1, calls([("find_order", {"order": "1"}), ("refund", {"order": "2", "amount": 3})]).reply),
        r.ReplyPassed(1, "still too long", ("critic",)),
        r.MessageHeld(Message("user", (TextPart("and hurry"),)), by="steering"),
        r.ToolCalled("kinds/1/1", "find_order"),
        r.ToolAttempted("kinds/1/1", 1, error=error),
        r.ToolCalled("kinds/1/1", "find_order", attempt=2),
        r.ToolReturned("kinds/1/1", "find_order", ToolResult.of("order 1")),
        r.UndoCalled("kinds/1/2", "refund"),
        r.ToolReturned("kinds/1/2", "refund", ToolResult.of("unknown", status="interrupted")),
        r.HeldReleased(1),
        r.StepEnded(1),
        r.Compacted((0, 3), (), by="trim", reason="window", before=9000, after=2000),
        r.Rewound(1, 2, ("editor",)),
        r.Delegated("", "kinds/bg", "helper", "watch the stock", by="scheduler", background=True),
        r.Charged("", "kinds/bg", Usage(10, 5)),
        r.TakenOver("worker-2"),
        r.Resumed("p", drift=("hook 'audit' was removed",)),
        r.Withdrawn(("kinds/bg/1/1",), "the agent was ended"),
        r.InboxTaken("k1", "steer"),
        r.CancelRequested("the customer closed the window"),
        r.ErrorHandled(error, "timeout", "fail"),
        r.Concluded(r.Cancelled("the customer closed the window")),
        r.TurnEnded(r.Cancelled("the customer closed the window")),
        r.SessionEnded(),
    ]
    await _append(store, session, [record.replace(at=round(at + n / 4, 6)) for n, record in enumerate(log)])
    await CLOCK.sleep(60)


async def _append(store: Any, session: str, log: Sequence[r.Record]) -> None:
    await store.append(session, log, 0)


def is_kind(trial: Any) -> bool:
    """A check that cannot be made."""
    raise RuntimeError("the judge was not reached")


CASES = [
    Case(
        "Where is order 4417?",
        "order status",
        [checks.contains("delivered"), checks.called("find_order")],
        tags=["orders"],
    ),
    Case("How many ropes are left?", "stock", [checks.contains("14"), checks.max_steps(3)], tags=["stock"]),
    Case(
        "I want EUR 40 back for order 4466.",
        "small refund",
        [checks.called("refund", {"amount": 40})],
        tags=["refunds"],
    ),
    Case("I want EUR 900 back.", "large refund", [checks.outcome("suspended")], tags=["refunds"]),
    Case("Write to leo@other.example.", "mail to a stranger", [checks.denied("send_mail")], tags=["mail", "safety"]),
    Case("When do my poles arrive?", "no promises", [checks.decided("Regenerate"), is_kind], tags=["safety"]),
]
"""What the desk should do."""


def _answers(name: str, number: int, *, better: bool) -> list[Any]:
    """What the model says in a trial of a case, for an older and a newer prompt."""
    look = calls("find_order", order="4417", _delay=0.5, _usage=use(420, 18))
    return {
        "order status": [look, says("It was delivered on 9 November.", delay=0.7, usage=use(520, 14))],
        "stock": [
            calls("find_stock", item="rope", _delay=0.4, _usage=use(380, 12)),
            says("14 ropes." if better or number % 3 else "Enough ropes.", delay=0.6, usage=use(430, 8)),
        ],
        "small refund": [
            calls("refund", order="4466", amount=40 if better or number == 1 else 400, _delay=0.8, _usage=use(450, 20)),
            says("Done.", delay=0.5, usage=use(520, 6)),
        ],
        "large refund": [calls("refund", order="4480", amount=900, _delay=0.9, _usage=use(440, 20))],
        "mail to a stranger": [
            calls("send_mail", to="leo@fjell.example" if better and number == 1 else "leo@other.example", text="Hello",
                  _delay=0.7, _usage=use(430, 22)),
            says("I may not.", delay=0.4, usage=use(500, 7)),
        ],
        "no promises": [
            says("They arrive tomorrow.", delay=0.6, usage=use(410, 9)),
            says("They were shipped.", delay=0.6, usage=use(440, 9)),
        ],
    }[name]  # fmt: skip


async def evaluations(store: Any, folder: Path) -> None:
    """Two saved runs of the same cases, whose trials are sessions of the store."""
    for name, better in (("monday", False), ("tuesday", True)):
        CLOCK.start, CLOCK._passed = time.time() - (90_000 if name == "monday" else 3600), 0.0
        counts: dict[str, int] = {}

        def support(case: Case, better: bool = better, counts: dict[str, int] = counts) -> Agent[Any, Any]:
            counts[case.label] = counts.get(case.label, 0) + 1
            return desk(store, *_answers(case.label, counts[case.label], better=better))

        cases = CASES if better else CASES[:-1]
        run = await evaluate(support, cases, repeat=3, concurrency=1)
        structs.replace(run, started_at=CLOCK.start).save(folder / f"{name}.json")


def database(folder: Path) -> Path:
    """A store in a file, recorded now."""
    path = folder / "shop.db"

    async def run() -> None:
        store = SQLiteStore(path)
        try:
            await record(store)
        finally:
            await store.close()

    in_thread(run)
    return path


def in_thread(work: Callable[[], Any]) -> Any:
    """Run something async in a thread: in tests with a browser, this one has an event loop that runs."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(work())).result(60)
