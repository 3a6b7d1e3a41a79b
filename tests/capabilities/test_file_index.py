"""FileIndex: what it finds, how it keeps up with files, and what it never reads."""

from __future__ import annotations

import os

import pytest

from windlass import Agent
from windlass.capabilities import FileIndex
from windlass.capabilities.file_scans import read_text
from windlass.capabilities.passages import Passage, fuse
from windlass.errors import ConfigError
from windlass.testing import FakeClock, ScriptedModel, calls, says


@pytest.fixture
def folder(tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "refunds.md").write_text("# Refunds\n\nRefunds are paid within ten days.\n")
    (docs / "shipping.md").write_text("# Shipping\n\nParcels leave on Mondays.\n")
    (docs / "sub").mkdir()
    (docs / "sub" / "tea.txt").write_text("Green tea, black tea.\n")
    return docs


def sources(index, query, limit=5):
    return [found.source for found in index.search(query, limit)]


def test_the_best_passage_comes_first_with_its_source_and_lines(folder):
    [found] = FileIndex(folder).search("When is a refund paid?")
    assert found.source == "refunds.md:1-3"
    assert "ten days" in found.text
    assert found.score > 0


def test_words_are_compared_by_their_stems_and_without_accents(folder):
    (folder / "coffee.md").write_text("Les cafés ouvrent tôt.")
    index = FileIndex(folder)
    assert sources(index, "refunding parcel") == ["refunds.md:1-3", "shipping.md:1-3"]
    assert sources(index, "CAFE") == ["coffee.md:1-1"]
    assert sources(FileIndex(folder, tokenizer="unicode61"), "refund") == []


@pytest.mark.parametrize(
    "query", ['what\'s "up" (tea) AND NOT *', "tea:", "^tea", "NEAR(tea black)", "tea -black", "{tea}"]
)
def test_the_query_has_no_syntax(folder, query):
    assert sources(FileIndex(folder), query) == ["sub/tea.txt:1-1"]


@pytest.mark.parametrize("query", ["", "?!", "   ", "\x00", "zebra"])
def test_a_query_without_known_words_finds_nothing(folder, query):
    assert sources(FileIndex(folder), query) == []


def test_the_name_of_a_file_counts(folder):
    (folder / "invoices.md").write_text("Sent by mail.")
    assert sources(FileIndex(folder), "invoices") == ["invoices.md:1-1"]


def test_added_changed_and_removed_files_are_found_out(folder):
    index = FileIndex(folder)
    assert sorted(index.refresh().added) == ["refunds.md", "shipping.md", "sub/tea.txt"]
    assert index.refresh() == type(index.refresh())()
    (folder / "new.md").write_text("A zebra.")
    (folder / "shipping.md").write_text("Parcels leave on Fridays.")
    (folder / "refunds.md").unlink()
    changes = index.refresh()
    assert (changes.added, changes.changed, changes.removed) == (("new.md",), ("shipping.md",), ("refunds.md",))
    assert sources(index, "zebra") == ["new.md:1-1"]
    assert sources(index, "Mondays refunds") == []
    assert sources(index, "Fridays") == ["shipping.md:1-1"]


def test_a_change_within_one_tick_and_of_the_same_size_is_noticed(folder):
    index = FileIndex(folder)
    index.refresh()
    before = (folder / "shipping.md").stat()
    (folder / "shipping.md").write_text("# Shipping\n\nParcels leave on Fridayz.\n")
    os.utime(folder / "shipping.md", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert index.refresh().changed == ("shipping.md",)


def test_a_touched_file_with_the_same_content_is_not_indexed_again(folder):
    index = FileIndex(folder)
    index.refresh()
    os.utime(folder / "shipping.md", (1, 1))
    assert index.refresh().changed == ()


def test_an_index_on_disk_is_taken_up_by_the_next_process(folder, tmp_path):
    first = FileIndex(folder, database=tmp_path / "index.db")
    first.refresh()
    first.close()
    for name in ("refunds.md", "shipping.md", "sub/tea.txt"):
        os.utime(folder / name, (1, 1))
    second = FileIndex(folder, database=tmp_path / "index.db")
    assert second.refresh().added == ()
    assert sources(second, "refund") == ["refunds.md:1-3"]
    other_shape = FileIndex(folder, database=tmp_path / "index.db", passage=200)
    assert len(other_shape.refresh().added) == 3


def test_two_indexes_on_one_database_see_each_others_changes(folder, tmp_path):
    one, other = [FileIndex(folder, database=tmp_path / "index.db") for _ in range(2)]
    one.refresh()
    assert other.refresh().added == ()
    (folder / "new.md").write_text("A zebra.")
    assert other.refresh().added == ("new.md",)
    assert one.refresh().added == ()
    assert sources(one, "zebra") == ["new.md:1-1"]


def test_what_cannot_be_read_is_skipped_and_named(folder):
    (folder / "image.md").write_bytes(b"\xff\xfe\x00")
    (folder / "long.md").write_text("x" * 2000)
    index = FileIndex(folder, largest=1000)
    skipped = index.refresh().skipped
    assert skipped == {"image.md": "it is not UTF-8 text", "long.md": "it has 2,000 bytes; at most 1,000 are read"}
    assert sources(index, "refund") == ["refunds.md:1-3"]


def test_a_file_that_disappears_while_it_is_looked_for_is_skipped(folder, monkeypatch):
    index = FileIndex(folder)

    def gone(place, path):
        if path == "refunds.md":
            raise FileNotFoundError(2, "No such file or directory")
        return read_text(place, path)

    monkeypatch.setattr("windlass.capabilities.file_index.read_text", gone)
    assert index.refresh().skipped == {"refunds.md": "No such file or directory"}
    assert sources(index, "parcels") == ["shipping.md:1-3"]


def test_a_link_that_leads_nowhere_does_no_harm(folder):
    (folder / "lost.md").symlink_to(folder / "nowhere.md")
    (folder / "loop.md").symlink_to(folder / "loop.md")
    assert sources(FileIndex(folder), "refund") == ["refunds.md:1-3"]


def test_a_file_that_became_unreadable_is_no_longer_found(folder):
    index = FileIndex(folder)
    index.refresh()
    (folder / "refunds.md").write_bytes(b"\xff refund")
    index.refresh()
    assert sources(index, "refund") == []


def test_links_out_of_the_folder_hidden_files_and_other_types_are_not_read(folder, tmp_path):
    """Behaviour 78: a link that leaves the folder is skipped."""
    (tmp_path / "secret.md").write_text("zebra")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "more.md").write_text("zebra")
    (folder / "link.md").symlink_to(tmp_path / "secret.md")
    (folder / "folder").symlink_to(tmp_path / "outside")
    (folder / ".hidden.md").write_text("zebra")
    (folder / "code.py").write_text("zebra")
    assert sources(FileIndex(folder), "zebra") == []
    (folder / "inside.md").symlink_to(folder / "shipping.md")
    assert "inside.md:1-3" in sources(FileIndex(folder), "parcels")


def test_long_texts_are_split_at_headings_and_paragraphs(folder):
    text = "".join(f"# Part {number}\n\n{'word ' * 12}number{number}\n\n" for number in range(10))
    (folder / "long.md").write_text(text)
    index = FileIndex(folder, passage=200)
    [found] = index.search("number7")
    assert len(found.text) <= 200
    assert found.text.splitlines()[0].startswith("# Part")
    first, last = map(int, found.source.partition(":")[2].split("-"))
    assert "\n".join(text.splitlines()[first - 1 : last]) == found.text


def test_nothing_of_a_long_line_is_lost(folder):
    (folder / "line.md").write_text(" ".join(f"token{number}" for number in range(300)))
    index = FileIndex(folder, passage=100)
    assert all(index.search(f"token{number}") for number in (0, 150, 299))


def test_words_that_are_nearly_everywhere_are_not_searched_for_unless_nothing_else_is_left(tmp_path):
    for number in range(600):
        (tmp_path / f"{number}.txt").write_text(f"everywhere often{number % 3} rare{number}")
    index = FileIndex(tmp_path)
    assert sources(index, "everywhere rare77", limit=20) == ["77.txt:1-1"]
    assert len(sources(index, "everywhere often1", limit=20)) == 20
    assert {found.text.split()[1] for found in index.search("everywhere often1", 20)} == {"often1"}
    assert len(sources(index, "everywhere", limit=20)) == 20


def test_of_a_long_query_the_rarest_words_are_searched_for(tmp_path):
    for number in range(600):
        (tmp_path / f"{number}.txt").write_text(f"{' '.join(f'w{n}' for n in range(number % 100))} rare{number}")
    query = " ".join([*[f"w{n}" for n in range(40)], "rare599"])
    assert sources(FileIndex(tmp_path), query)[0] == "599.txt:1-1"


def embed(texts):
    """A model of meaning with two dimensions: drinks and money."""
    drinks, money = ("tea", "beverage"), ("refund", "paid", "money")
    return [[float(sum(word in text.lower() for word in words)) for words in (drinks, money)] for text in texts]


def test_with_embeddings_a_passage_without_a_common_word_is_found(folder):
    index = FileIndex(folder, embed=embed)
    assert sources(index, "beverage", 1) == ["sub/tea.txt:1-1"]
    assert sources(index, "money back: refunds", 1) == ["refunds.md:1-3"]
    assert sources(FileIndex(folder), "beverage") == []


def test_only_new_passages_are_embedded(folder):
    asked = []

    def counted(texts):
        asked.extend(texts)
        return embed(texts)

    index = FileIndex(folder, embed=counted)
    index.refresh()
    (folder / "new.md").write_text("A beverage.")
    asked.clear()
    index.refresh()
    assert asked == ["A beverage."]
    assert "new.md:1-1" in sources(index, "tea", 2)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda texts: [[1.0]],
        lambda texts: [None for _ in texts],
        lambda texts: [[float("nan"), 1.0] for _ in texts],
        lambda texts: [[1.0] * (number + 1) for number, _ in enumerate(texts)],
    ],
)
def test_an_invalid_embedding_is_an_error_that_names_it(folder, wrong):
    with pytest.raises(ConfigError, match="embed"):
        FileIndex(folder, embed=wrong).refresh()


def test_two_rankings_are_fused_by_rank():
    a, b, c = (Passage(text, text) for text in "abc")
    assert [found.source for found in fuse([a, b], [b, c])] == ["b", "a", "c"]


async def test_it_is_a_tool_that_sees_changes_when_they_are_due(folder):
    clock = FakeClock()
    index = FileIndex(folder, every=60)
    model = ScriptedModel(*[calls("search_files", query="zebra"), says("ok")] * 3)
    agent = Agent(model, tools=[index.tool()], clock=clock)

    async def found():
        result = await agent.run("go")
        return result.messages[2].parts[0].text

    assert await found() == "Nothing found."
    (folder / "new.md").write_text("A zebra.")
    assert await found() == "Nothing found."
    await clock.advance(60)
    assert await found() == '<passage source="new.md:1-1">\nA zebra.\n</passage>'


@pytest.mark.parametrize(
    "options",
    [{"patterns": "*.md"}, {"passage": 5}, {"largest": 0}, {"every": -1}, {"embed": 3}, {"tokenizer": "nonsense"}],
)
def test_invalid_options_are_refused(folder, options):
    with pytest.raises(ConfigError):
        FileIndex(folder, **options)


def test_a_folder_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="existing folder"):
        FileIndex(tmp_path / "nowhere")
