"""What retrieval and memory cost a turn at 10,000 documents: `python benchmarks/retrieval.py [documents]`.

Prints CPU milliseconds per turn, the median of 50 turns, with the threads that search: for retrieval from files, and
for a memory of as many memos under one key.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from windlass import Agent
from windlass.capabilities import FileIndex, Memory, Retrieve
from windlass.testing import FunctionModel

TURNS = 50
WORDS = [f"w{number}" for number in range(30_000)]
WEIGHTS = [1 / (rank + 1) for rank in range(len(WORDS))]
COMMON = ["the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "with", "on", "by", "this", "be"]


def write_documents(folder: Path, count: int) -> None:
    """Documents of about 2 KB, with words as frequent as in a natural language, and words that are in all of them."""
    chance = random.Random(7)
    for number in range(count):
        words = chance.choices(WORDS, WEIGHTS, k=300) + chance.choices(COMMON, k=100)
        chance.shuffle(words)
        place = folder / f"{number % 100:02d}"
        place.mkdir(exist_ok=True)
        place.joinpath(f"{number}.txt").write_text(" ".join(words))


def questions() -> list[str]:
    """Short and long questions, with rare and common words, and some of common words only."""
    chance = random.Random(11)
    short = [" ".join([*chance.choices(WORDS, WEIGHTS, k=6), "what", "is", "the"]) for _ in range(TURNS // 2)]
    long = [" ".join(chance.choices(WORDS, WEIGHTS, k=60) + COMMON) for _ in range(TURNS - len(short) - 5)]
    return [*short, *long, *[" ".join(COMMON)] * 5]


async def turns(agent: Agent) -> str:
    """The CPU milliseconds of a turn: the median, and the most."""
    await agent.run("warm up", session="s0")
    found = []
    for number, question in enumerate(questions(), 1):
        began = time.process_time()
        result = await agent.run(question, session=f"s{number}")
        found.append((time.process_time() - began) * 1000)
        assert result.text == "ok"
    await agent.aclose()
    return f"{median(found):.2f} ms a turn, at most {max(found):.2f} ms"


def agent_with(*capabilities: Any, store: str = "memory:") -> Agent:
    return Agent(FunctionModel(lambda request: "ok"), capabilities=capabilities, store=store)


async def remembering(count: int, store: str) -> Agent:
    """An agent that remembers so much under one key, as `Memory` keeps it."""
    agent = agent_with(Memory(key="k"), store=store)
    storage = agent.storage("memory")
    for number in range(count):
        key = f"k\n{number:017d}.000000.{number:012x}.{number:012x}"
        await storage.put(key, {"text": f"The user likes thing {number}.", "at": number / 1e6})
    return agent


async def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_documents(folder, count)
        index = FileIndex(folder)
        for label in (f"index of {count:,} documents", f"look for changes, once in {index.every:.0f} s"):
            began = time.process_time()
            index.refresh()
            print(f"{label}: {(time.process_time() - began) * 1000:,.1f} ms")
        print("neither:", await turns(agent_with()))
        print("Retrieve:", await turns(agent_with(Retrieve(index))))
        print("Memory, in memory:", await turns(await remembering(count, "memory:")))
        print("Memory, in SQLite:", await turns(await remembering(count, f"sqlite:///{folder}/store.db")))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
