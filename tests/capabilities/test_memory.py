"""Memory: memos are shown when a turn starts, kept when it ends, once each, in the store or in files."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from windlass import Agent, Completed, HookFailed, Noted, tool
from windlass.capabilities import Memo, Memory, MemoryFiles
from windlass.capabilities.memos import StoredMemos
from windlass.errors import ConfigError
from windlass.testing import (
    FakeClock,
    FunctionModel,
    ScriptedModel,
    assert_prefix_stable,
    assert_same_everywhere,
    calls,
    check_capability,
    fake_storage,
    says,
)


@pytest.fixture(params=["store", "folder", "file"])
def backend(request, tmp_path):
    """A back end, or None for the store of the agent."""
    if request.param == "store":
        return None
    return MemoryFiles(tmp_path / ("memory" if request.param == "folder" else "MEMORY.md"))


@pytest.fixture(params=["store", "folder", "file"])
def memos(request, tmp_path):
    if request.param == "store":
        return StoredMemos(fake_storage())
    return MemoryFiles(tmp_path / ("memory" if request.param == "folder" else "MEMORY.md"))


def learned(event):
    return f"The user said {event.turn.user_message.text}"


def agent_with(memory, *script, **options):
    return Agent(ScriptedModel(*(script or [says("ok")] * 4)), capabilities=[memory], **options)


def shown(agent, number=-1):
    """What the model remembers in one of its requests."""
    user = [message for message in agent.model.requests[number].messages if message.role == "user"][-1]
    return "".join(part.text for part in user.parts if part.origin == "memory.recall")


async def notes(agent, session):
    return [record for record in await agent.store.read(session) if isinstance(record, Noted)]


@pytest.mark.parametrize(
    "make",
    [Memory, lambda: Memory(learn=learned, tools=True), lambda: Memory(shown="session", key="all")],
)
async def test_it_passes_the_checks_for_capabilities(make):
    await check_capability(make)


async def test_it_passes_the_checks_with_files(tmp_path):
    folders = iter(range(1000))
    await check_capability(lambda: Memory(MemoryFiles(tmp_path / str(next(folders))), learn=learned))


# ---------------------------------------------------------------- reading and learning


async def test_what_a_turn_teaches_is_shown_in_the_next_session_of_the_same_key(backend):
    agent = agent_with(Memory(backend, key=lambda turn: turn.scope["user"], learn=learned))
    await agent.run("tea", session="a", scope={"user": "ann"})
    await agent.run("hello", session="b", scope={"user": "ann"})
    assert shown(agent, 0) == ""
    assert shown(agent).endswith("\n- The user said tea")
    if not isinstance(backend, MemoryFiles) or not backend.path.is_file():
        await agent.run("hello", session="c", scope={"user": "bob"})
        assert shown(agent) == ""


async def test_by_default_each_session_has_its_own_memory():
    agent = agent_with(Memory(learn=learned))
    await agent.run("tea", session="a")
    await agent.run("hello", session="b")
    assert shown(agent) == ""
    await agent.run("hello", session="a")
    assert "tea" in shown(agent)


async def test_without_a_key_nothing_is_remembered():
    agent = agent_with(
        Memory(key=lambda turn: None, learn=learned, tools=True), calls("remember", text="x"), says("ok")
    )
    result = await agent.run("tea")
    assert result.messages[2].parts[0].status == "error"
    assert await agent.storage("memory").keys() == []


async def test_only_completed_turns_teach():
    agent = agent_with(Memory(learn=learned), OSError("down"), errors=None)
    await agent.run("tea")
    assert await agent.storage("memory").keys() == []


async def test_a_function_may_be_async_and_return_several_texts_or_none(backend):
    async def several(event):
        return ["one", "two", "one"] if event.text == "ok" else None

    agent = agent_with(Memory(backend, key="k", learn=several), says("no"), says("ok"), says("ok"))
    await agent.run("x")
    await agent.run("x")
    await agent.run("x")
    assert shown(agent).endswith("- one\n- two")


async def test_a_model_is_asked_what_is_worth_remembering():
    teacher = ScriptedModel(says('["Ann likes tea."]'), says("nonsense"), says("[]"), name="teacher")
    agent = agent_with(Memory(key="k", learn=teacher))
    await agent.run("I am Ann, tea please.", session="a")
    await agent.run("Thanks.", session="b")
    assert "I am Ann, tea please." in teacher.requests[0].messages[0].text
    assert "Already remembered:\n- Ann likes tea." in teacher.requests[1].messages[0].text
    assert "Ann likes tea." in shown(agent)
    assert (await agent.state("b")).text == "ok"


@pytest.mark.parametrize("wrong", [lambda event: 1 / 0, lambda event: [1], lambda event: "x" * 2000])
async def test_a_failure_to_learn_is_noted_and_changes_nothing(wrong):
    agent = agent_with(Memory(learn=wrong))
    assert (await agent.run("tea", session="s")).text == "ok"
    [note] = await notes(agent, "s")
    assert note.kind == "memory.failed"


async def test_learning_that_takes_too_long_does_not_keep_the_turn_from_ending():
    clock = FakeClock()

    async def slow(event):
        await event.turn.sleep(100)

    agent = agent_with(Memory(learn=slow), clock=clock)
    running = asyncio.create_task(agent.run("tea", session="s"))
    await clock.advance(4)
    assert (await running).text == "ok"
    assert [note.data["error"] for note in await notes(agent, "s")] == ["TimeoutError"]


async def test_secrets_are_not_remembered(backend, tmp_path):
    agent = agent_with(Memory(backend, key="k", learn=lambda event: "The key is s3cr3t!"), secrets=["s3cr3t"])
    await agent.run("tea")
    await agent.run("tea")
    assert "The key is" in shown(agent)
    assert "s3cr3t" not in shown(agent)
    assert not any("s3cr3t" in file.read_text() for file in tmp_path.rglob("*.md"))


async def test_the_newest_memos_that_fit_are_shown_and_the_others_noted(backend):
    agent = agent_with(Memory(backend, key="k", learn=learned, reserve=60))
    for text in ("a" * 40, "b" * 40, "c" * 40, "d" * 400):
        await agent.run(text, session="s")
    agent.model.script.append(says("ok"))
    await agent.run("what?", session="s")
    assert "b" * 40 in shown(agent)
    assert "c" * 40 in shown(agent)
    assert "d" * 10 not in shown(agent)
    assert shown(agent).index("b" * 40) < shown(agent).index("c" * 40)
    assert (await notes(agent, "s"))[-1].kind == "memory.left_out"


async def test_at_most_so_many_are_shown(memos):
    for number in range(5):
        await memos.add("k", Memo(f"{number:012x}", f"text {number}", float(number)))
    assert [memo.text for memo in await memos.read("k", 2)] == ["text 4", "text 3"]
    assert len(await memos.read("k", 99)) == 5


async def test_more_than_the_reserve_of_the_agent_is_refused_when_it_is_compiled():
    with pytest.raises(ConfigError, match="reserve=1500 is more than injection_reserve=100"):
        agent_with(Memory(), injection_reserve=100).compile()


@pytest.mark.parametrize("optional", [False, True])
async def test_memos_that_cannot_be_read_fail_the_turn_unless_they_are_optional(tmp_path, optional):
    (tmp_path / "MEMORY.md").write_bytes(b"\xff\xfe")
    agent = agent_with(Memory(MemoryFiles(tmp_path / "MEMORY.md"), optional=optional))
    result = await agent.run("tea", session="s")
    assert isinstance(result.outcome, Completed) == optional
    failed = [record.hook for record in await agent.store.read("s") if isinstance(record, HookFailed)]
    assert failed == (["memory.recall"] if optional else [])


async def test_for_a_session_it_is_part_of_the_system_text_and_stays_the_same():
    agent = agent_with(Memory(key="k", learn=learned, shown="session"))
    await agent.run("tea", session="a")
    await agent.run("one", session="b")
    await agent.run("two", session="b")
    first, second = agent.model.requests[1:]
    assert "The user said tea" in first.system
    assert first.system == second.system
    await assert_prefix_stable(agent, "b")


# ---------------------------------------------------------------- tools


async def test_the_model_remembers_and_forgets(backend):
    ids = []

    def reply(request):
        last = request.messages[-1]
        if last.role == "tool":
            return says(last.parts[0].text)
        remembered = "".join(part.text for part in last.parts if part.origin == "memory.recall")
        if last.parts[0].text == "forget":
            ids.append(remembered.partition("[")[2].partition("]")[0])
            return calls("forget", id=ids[-1])
        return says(remembered) if last.parts[0].text == "what" else calls("remember", text="Ann likes tea.")

    agent = Agent(FunctionModel(reply), capabilities=[Memory(backend, key="k", tools=True)])
    assert (await agent.run("go")).text == "It is remembered."
    assert (await agent.run("go")).text == "It is remembered."
    assert (await agent.run("what")).text.count("] Ann likes tea.") == 1
    assert "is remembered any more" in (await agent.run("forget")).text
    assert (await agent.run("what")).partial_text == ""
    assert len(ids[0]) == 12


@pytest.mark.parametrize("text", ["", "   ", "x" * 1001])
async def test_an_empty_or_long_text_is_an_error_that_the_model_reads(text):
    agent = agent_with(Memory(tools=True), calls("remember", text=text), says("ok"))
    result = (await agent.run("go")).messages[2].parts[0]
    assert result.status == "error"
    assert "a memo has 1 to 1000 characters" in result.text


async def test_it_is_the_same_everywhere():
    @tool(effect="pure", inline=True)
    def look() -> str:
        """Look."""
        return "looked"

    script = [calls([("remember", {"text": "x"}), ("look", {})]), says("ok")]
    await assert_same_everywhere(lambda: agent_with(Memory(learn=learned, tools=True), *script, tools=[look]))


# ---------------------------------------------------------------- back ends


async def test_a_memo_is_kept_once_by_id_and_by_text(memos):
    assert await memos.add("k", Memo("0" * 12, "tea", 1.0))
    assert not await memos.add("k", Memo("0" * 12, "other text", 2.0))
    assert not await memos.add("k", Memo("1" * 12, "tea", 2.0))
    assert await memos.add("k", Memo("2" * 12, "coffee", 1.5))
    assert await memos.read("k", 9) == [Memo("2" * 12, "coffee", 1.5), Memo("0" * 12, "tea", 1.0)]
    assert await memos.remove("k", "0" * 12)
    assert not await memos.remove("k", "0" * 12)
    assert [memo.text for memo in await memos.read("k", 9)] == ["coffee"]


@pytest.mark.parametrize(
    "text", ["two\nlines", "- a list", "# a heading", "a <!-- comment --> x", "--> x", "ünï", "a."]
)
async def test_any_text_is_read_back(memos, text):
    await memos.add("k", Memo("0" * 12, "before", 0.5))
    await memos.add("k", Memo("1" * 12, text, 1.0))
    await memos.add("k", Memo("2" * 12, "after", 2.0))
    assert [memo.text for memo in await memos.read("k", 9)] == ["after", text, "before"]


@pytest.mark.parametrize(
    "key", ["../up", "/etc/passwd", "a/b", "..", ".", "x" * 500, "a\nb", "a\0b", "ä", "c:\\x", "~"]
)
async def test_any_key_is_a_file_of_the_folder(tmp_path, key):
    memos = MemoryFiles(tmp_path / "memory")
    await memos.add(key, Memo("0" * 12, "tea", 1.0))
    await memos.add(key + "!", Memo("1" * 12, "coffee", 1.0))
    assert [memo.text for memo in await memos.read(key, 9)] == ["tea"]
    assert len(list((tmp_path / "memory").glob("*.md"))) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["memory"]


async def test_keys_in_the_store_are_told_apart():
    memos = StoredMemos(fake_storage())
    for number, key in enumerate(["a", "a\n", "a.b", "a" * 500, "a" * 501]):
        await memos.add(key, Memo(f"{number:012x}", "text", 1.0))
    assert len(await memos.read("a", 9)) == 1
    assert len(await memos.read("a" * 500, 9)) == 1


async def test_people_may_write_the_file(tmp_path):
    file = tmp_path / "MEMORY.md"
    file.write_text("# About Ann\n\nAnn lives in Ulm.\n\n* She likes tea,\n  green tea.\n- And dogs\n")
    memos = MemoryFiles(file)
    found = await memos.read("any", 9)
    assert [memo.text for memo in found] == ["And dogs", "She likes tea,\ngreen tea.", "Ann lives in Ulm."]
    await memos.remove("any", found[1].id)
    await memos.add("any", Memo("0" * 12, "New", 1.0))
    lines = file.read_text().splitlines()
    assert lines[:5] == ["# About Ann", "", "Ann lives in Ulm.", "", "- And dogs"]
    assert lines[5] == "- New <!-- 000000000000 1970-01-01T00:00:01+00:00 -->"


async def test_a_link_is_neither_read_nor_written(tmp_path):
    memos = MemoryFiles(tmp_path / "memory")
    await memos.add("x", Memo("0" * 12, "tea", 1.0))
    (tmp_path / "secret.md").write_text("- secret")
    os.symlink(tmp_path / "secret.md", memos.file_of("k"))
    with pytest.raises(ConfigError, match="is a link"):
        await memos.read("k", 9)
    with pytest.raises(ConfigError, match="is a link"):
        await memos.add("k", Memo("0" * 12, "tea", 1.0))


async def test_writers_at_the_same_time_lose_nothing(tmp_path):
    one, other = MemoryFiles(tmp_path / "memory"), MemoryFiles(tmp_path / "memory")
    adding = [(one, other)[n % 2].add("k", Memo(f"{n:012x}", f"text {n}", float(n))) for n in range(40)]
    assert all(await asyncio.gather(*adding))
    assert len(await one.read("k", 99)) == 40
    assert not list((tmp_path / "memory").glob("*.new"))


async def test_the_same_text_at_the_same_time_is_kept_once(backend, tmp_path):
    store, start = f"sqlite:///{tmp_path}/agent.db", threading.Barrier(4)

    async def work(thread):
        memory = Memory(backend, key="ann", learn=lambda event: [event.turn.user_message.text, event.turn.session_id])
        async with Agent(FunctionModel(lambda request: says("ok")), capabilities=[memory], store=store) as agent:
            for number in range(6):
                await asyncio.to_thread(start.wait, 30)
                await agent.run(f"tea {number}", session=f"{thread}-{number}")

    await asyncio.gather(*[asyncio.to_thread(asyncio.run, work(thread)) for thread in range(4)])
    async with agent_with(Memory(backend, key="ann"), store=store) as reader:
        await reader.run("go")
    lines = [line[2:] for line in shown(reader).splitlines() if line.startswith("- ")]
    sessions = [f"{thread}-{number}" for thread in range(4) for number in range(6)]
    assert sorted(lines) == sorted([*[f"tea {number}" for number in range(6)], *sessions])


def test_a_path_of_the_wrong_kind_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.md").mkdir()
    for name in ("file", "folder.md"):
        with pytest.raises(ConfigError, match="MemoryFiles"):
            MemoryFiles(tmp_path / name)


@pytest.mark.parametrize(
    "options",
    [
        {"most": 0},
        {"reserve": 0},
        {"longest": 0},
        {"shown": "step"},
        {"learn": 3},
        {"key": 3},
        {"tools": 1},
        {"name": ""},
    ],
)
def test_invalid_options_are_refused(options):
    with pytest.raises(ConfigError, match="Memory"):
        Memory(**options)


def test_explain_lists_it(tmp_path):
    explained = agent_with(Memory(learn=learned, tools=True)).explain()
    summary = "in the store, shown for each turn, at most 1500 tokens, learns at the end of a turn, remember and forget"
    assert explained.data["capabilities"][0]["summary"] == summary
    assert "memory.recall" in str(explained)


def test_no_two_keys_share_a_file_even_where_names_ignore_case(tmp_path):
    files = MemoryFiles(tmp_path)
    long = "x" * 500
    keys = ["ann", "Ann", "ANN", "%41nn", "a.b", "A.B", "é", "É", "a%2Fb", "a/b", long, long.upper()]
    keys.append(files.file_of(long).stem)  # a key that looks like the short name of another one
    assert len({files.file_of(key).name.lower() for key in keys}) == len(keys)


async def test_a_memo_with_paragraphs_stays_one_memo(tmp_path):
    files = MemoryFiles(tmp_path)
    assert await files.add("k", Memo("0" * 12, "Likes tea.\n\n# Always\n\nwith milk"))
    assert not await files.add("k", Memo("1" * 12, "Likes tea.\n\n# Always\n\nwith milk"))
    assert [memo.text for memo in await files.read("k", 9)] == ["Likes tea.\n# Always\nwith milk"]
    assert await files.remove("k", "0" * 12)
    assert await files.read("k", 9) == []


async def test_mistakes_are_named(tmp_path):
    files = MemoryFiles(tmp_path)
    files.file_of("k").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"k\.md is not a text in UTF-8"):
        await files.read("k", 9)
    agent = Agent(ScriptedModel(says("Hi.")), capabilities=[Memory(key=lambda turn: 5)])
    result = await agent.run("go")
    assert "the key of a memory must be a text, not 5" in result.outcome.error.message


@pytest.mark.parametrize("wrong", [5, {"a": 1}, b"x", [1]])
async def test_what_learn_returns_must_be_texts(wrong):
    agent = Agent(ScriptedModel(says("Hi.")), capabilities=[Memory(learn=lambda event: wrong)])
    await agent.run("go", session="s")
    (note,) = [record for record in await agent.store.read("s") if isinstance(record, Noted)]
    assert note.kind == "memory.failed"
    assert note.data["text"].endswith("return a text, a list of texts or None")
