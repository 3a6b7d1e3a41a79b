"""Skills: folders with a SKILL.md are offered, used on demand, and restrict the tools while they are active."""

from __future__ import annotations

import os

import pytest

from windlass import Agent, Allow, Ask, Noted, StepEnded, ToolCalling, tool
from windlass.capabilities import Skills
from windlass.errors import ConfigError
from windlass.testing import (
    ScriptedModel,
    assert_prefix_stable,
    assert_same_everywhere,
    calls,
    check_capability,
    says,
)

PDF = """---
name: pdf-forms
description: >
  Fill in PDF forms.
  Use it when the user has a form.
license: MIT
allowed-tools: Read, Bash(python scripts/fill.py:*)
metadata:
  author: Ann
---
# Fill in forms

See reference.md, then run scripts/fill.py.
"""
PLAIN = "---\nname: tone\ndescription: How we write.\n---\nWrite short sentences.\n"


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "skills"
    for name, text in (("pdf-forms", PDF), ("tone", PLAIN)):
        (root / name).mkdir(parents=True)
        (root / name / "SKILL.md").write_text(text)
    (root / "pdf-forms" / "reference.md").write_text("Fields: name, date.")
    (root / "pdf-forms" / "scripts").mkdir()
    (root / "pdf-forms" / "scripts" / "fill.py").write_text("print('filled')\n")
    return root


@tool(effect="pure", inline=True)
def read_file(path: str) -> str:
    """Read."""
    return f"content of {path}"


@tool(effect="pure", inline=True)
def bash(command: str) -> str:
    """Run."""
    return f"ran {command}"


@tool(effect="pure", inline=True)
def send(to: str) -> str:
    """Send."""
    return f"sent to {to}"


def agent_with(skills, *script, **options):
    return Agent(ScriptedModel(*script, says("done")), tools=[read_file, bash, send], capabilities=[skills], **options)


def results(result):
    return [part for message in result.messages for part in message.parts if message.role == "tool"]


USE = calls("use_skill", name="pdf-forms")
tells_case = pytest.mark.skipif(os.path.exists(__file__.upper()), reason="file names ignore case here")


async def test_it_passes_the_checks_for_capabilities(folder):
    await check_capability(lambda: Skills(folder))
    (folder / "broken").mkdir()
    (folder / "broken" / "SKILL.md").write_text("no front matter")
    await check_capability(lambda: Skills(folder))


async def test_names_and_descriptions_are_in_the_prefix_and_nothing_else(folder):
    agent = agent_with(Skills(folder), system="You help.")
    await agent.run("hi")
    system = agent.model.requests[0].system
    assert system.startswith("You help.")
    assert "- pdf-forms: Fill in PDF forms. Use it when the user has a form.\n- tone: How we write." in system
    assert "short sentences" not in system
    assert "reference.md" not in system


async def test_instructions_and_files_are_read_on_demand(folder):
    agent = agent_with(
        Skills(folder),
        USE,
        calls("read_skill_file", skill="pdf-forms", path="reference.md"),
        calls("read_skill_file", skill="pdf-forms", path="scripts/fill.py", offset=0, length=5),
    )
    body, reference, script = [part.text for part in results(await agent.run("go"))]
    assert body.startswith(f"Skill pdf-forms, in the folder {folder.resolve() / 'pdf-forms'}\n")
    assert "reference.md, scripts/fill.py" in body
    assert body.endswith("See reference.md, then run scripts/fill.py.")
    assert "allowed-tools" not in body
    assert reference == "Fields: name, date."
    assert script == "print\n[characters 0 to 4 of 16; go on with offset=5]"


async def test_a_changed_skill_is_read_as_it_is_now(folder):
    agent = agent_with(Skills(folder), calls("use_skill", name="tone"))
    (folder / "tone" / "SKILL.md").write_text(PLAIN + "And no jargon.")
    assert "no jargon" in results(await agent.run("go"))[0].text
    agent = agent_with(Skills(folder), calls("use_skill", name="tone"))
    (folder / "tone" / "SKILL.md").write_text("gone")
    assert "cannot be read: it has no front matter" in results(await agent.run("go"))[0].text


async def test_an_unknown_skill_is_an_error_that_names_the_known_ones(folder):
    [result] = results(await agent_with(Skills(folder), calls("use_skill", name="docx")).run("go"))
    assert result.status == "error"
    assert "there is no skill 'docx'; the skills are pdf-forms, tone" in result.text


# ---------------------------------------------------------------- allowed tools


async def test_while_a_skill_is_active_only_its_tools_may_be_called(folder):
    agent = agent_with(
        Skills(folder),
        calls("send", to="ann"),
        USE,
        calls([
            ("read_file", {"path": "a"}),
            ("bash", {"command": "python scripts/fill.py a.pdf"}),
            ("bash", {"command": "rm -rf /"}),
            ("bash", {"command": "python scripts/fill.py a.pdf; rm -rf /"}),
            ("send", {"to": "ann"}),
            ("read_skill_file", {"skill": "tone", "path": "SKILL.md"}),
        ]),
    )  # fmt: skip
    result = await agent.run("go")
    assert [part.status for part in results(result)] == ["ok", "ok", "ok", "ok", "denied", "denied", "denied", "ok"]
    refused = results(result)[6].text
    assert "skill pdf-forms allows only read_file, bash(python scripts/fill.py:*) until this turn ends" in refused


async def test_a_skill_is_active_from_the_step_after_its_call_until_the_turn_ends(folder):
    together = calls([("use_skill", {"name": "pdf-forms"}), ("send", {"to": "ann"})])
    script = [together, calls("send", to="ann"), says("one"), calls("send", to="ann"), says("two")]
    agent = Agent(ScriptedModel(*script), tools=[read_file, bash, send], capabilities=[Skills(folder)])
    first = await agent.run("go", session="s")
    assert [part.status for part in results(first)] == ["ok", "ok", "denied"]
    assert [part.status for part in results(await agent.run("go on", session="s"))][-1] == "ok"


async def test_a_skill_without_a_list_neither_restricts_nor_frees(folder):
    tone = calls("use_skill", name="tone")
    agent = agent_with(Skills(folder), tone, calls("send", to="ann"), USE, tone, calls("send", to="ann"))
    statuses = [part.status for part in results(await agent.run("go"))]
    assert statuses == ["ok", "ok", "ok", "ok", "denied"]


async def test_of_several_active_skills_each_adds_its_tools(folder):
    (folder / "mail").mkdir()
    (folder / "mail" / "SKILL.md").write_text("---\nname: mail\ndescription: Mail.\nallowed-tools: [send]\n---\nSend.")
    both = calls([("use_skill", {"name": "pdf-forms"}), ("use_skill", {"name": "mail"})])
    agent = agent_with(Skills(folder), both, calls([("send", {"to": "x"}), ("read_file", {"path": "x"})]))
    assert [part.status for part in results(await agent.run("go"))] == ["ok"] * 4


async def test_an_empty_list_allows_no_tool(folder):
    (folder / "mute").mkdir()
    (folder / "mute" / "SKILL.md").write_text("---\nname: mute\ndescription: Think.\nallowed-tools: []\n---\nThink.")
    agent = agent_with(Skills(folder), calls("use_skill", name="mute"), calls("send", to="x"))
    assert "allows no tool" in results(await agent.run("go"))[1].text


async def test_tools_can_be_named_otherwise_or_always_allowed(folder):
    @tool(effect="pure", inline=True)
    def look(path: str) -> str:
        """Look."""
        return path

    skills = Skills(folder, names={"Read": "look"}, always=["sen*"])
    model = ScriptedModel(USE, calls([("look", {"path": "a"}), ("send", {"to": "x"}), ("read_file", {"path": "a"})]))
    agent = Agent(model, tools=[read_file, send, look], capabilities=[skills])
    statuses = [part.status for part in results(await agent.run("go"))]
    assert statuses == ["ok", "ok", "ok", "denied"]
    warnings = agent.explain().data["warnings"]
    assert any("allows Bash(python scripts/fill.py:*): no such tool" in text for text in warnings)


async def test_an_allowed_tool_is_not_allowed_against_other_gates(folder):
    agent = agent_with(Skills(folder), USE, calls("send", to="ann"))
    agent.gate(ToolCalling)(lambda event: Allow())
    assert [part.status for part in results(await agent.run("go"))] == ["ok", "denied"]


async def test_sessions_do_not_share_active_skills(folder):
    skills = Skills(folder)
    model = ScriptedModel(USE, says("one"), calls("send", to="ann"), says("two"))
    agent = Agent(model, tools=[read_file, bash, send], capabilities=[skills])
    await agent.run("go", session="a")
    assert [part.status for part in results(await agent.run("go", session="b"))] == ["ok"]


async def test_a_fork_in_the_middle_of_a_turn_keeps_the_restriction(folder):
    agent = agent_with(Skills(folder), USE, calls("send", to="ann"))
    await agent.run("go", session="s")
    log = await agent.store.read("s")
    at = next(number for number, record in enumerate(log, 1) if isinstance(record, StepEnded))
    await agent.fork("s", at=at, to="fork")
    agent.model.script.extend([calls("send", to="ann"), says("done")])
    assert [part.status for part in results(await agent.resume("fork"))] == ["ok", "denied"]


async def test_an_active_skill_that_is_gone_on_resume_allows_nothing(folder, tmp_path):
    agent = agent_with(Skills(folder), USE, calls("read_file", path="a"))
    agent.gate(ToolCalling, tool="read_file", name="ask")(lambda event: Ask("May it?"))
    await agent.run("go", session="s")
    (tmp_path / "other" / "x").mkdir(parents=True)
    (tmp_path / "other" / "x" / "SKILL.md").write_text("---\nname: x\ndescription: x\nallowed-tools: send\n---\n")
    later = agent_with(Skills(tmp_path / "other"), store=agent.store)
    result = await later.resume("s")
    assert "is in use, but its folder is gone" in results(result)[-1].text


async def test_it_is_the_same_everywhere(folder):
    await assert_same_everywhere(lambda: agent_with(Skills(folder), USE, calls("send", to="ann")))


async def test_the_prefix_stays_the_same(folder):
    agent = agent_with(Skills(folder), USE, calls("send", to="ann"))
    await agent.run("go", session="s")
    await assert_prefix_stable(agent, "s")


# ---------------------------------------------------------------- broken skills and paths


LEVELS = [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 9)]
BOMB = "".join(["a0: &a0 [x, x, x, x, x, x, x, x, x]\n", *LEVELS])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("# just text", "no front matter"),
        ("---\ndescription: x\n---\n", "it has no name"),
        ("---\nname: x\n---\n", "no description"),
        ("---\nname: [a, b]\ndescription: x\n---\n", "its name must be a text"),
        ("---\nname: tone\ndescription: x\n---\n", "the name 'tone' is that of the skill in"),
        ("---\nname: x\ndescription: x\nallowed-tools: Bash(git\n---\n", "allowed-tools cannot be read"),
        ("\x00\x01", "not a text"),
        (f"---\nname: x\ndescription: {'y' * 1025}\n---\n", "has 1,025 characters; the format allows 1,024"),
        (f"---\nname: x\ndescription: x\nallowed-tools: {'[' * 5000}\n---\n", "nested too deeply"),
        ("---\nname: x\ndescription: x\nmetadata: &m {a: *m}\n---\n", "nested too deeply"),
        ("---\nname: x\ndescription: x\nmetadata: {a: 2020-99-99}\n---\n", "not valid YAML: month must be"),
        (f"---\nname: x\ndescription: x\n{BOMB}allowed-tools: *a8\n---\n", "its aliases make it too large"),
    ],
)
async def test_a_broken_skill_is_named_and_skipped(folder, text, why):
    (folder / "zzz").mkdir()
    (folder / "zzz" / "SKILL.md").write_text(text)
    skills = Skills(folder)
    assert list(skills.skills) == ["pdf-forms", "tone"]
    [(place, reason)] = skills.skipped.items()
    assert place.endswith("zzz")
    assert why in reason
    agent = agent_with(skills)
    assert any(why in warning and "zzz" in warning for warning in agent.explain().data["warnings"])
    await agent.run("go", session="s")
    [note] = [record for record in await agent.store.read("s") if isinstance(record, Noted)]
    assert note.kind == "skills.skipped"
    assert why in note.data["skills"]["zzz"]
    with pytest.raises(ConfigError, match="zzz"):
        Skills(folder, strict=True)


async def test_a_skill_that_is_not_for_models_is_not_offered(folder):
    (folder / "deploy").mkdir()
    text = "---\nname: deploy\ndescription: Deploy.\ndisable-model-invocation: true\n---\nGo."
    (folder / "deploy" / "SKILL.md").write_text(text)
    agent = agent_with(Skills(folder), calls("use_skill", name="deploy"))
    assert results(await agent.run("go"))[0].status == "error"
    assert "deploy" not in agent.model.requests[0].system


@pytest.mark.parametrize(
    "path",
    ["../tone/SKILL.md", "/etc/passwd", "~/x", "scripts/../../tone/SKILL.md", "link.md", "out/SKILL.md", "", "a\0b",
     "..\\tone\\SKILL.md", "C:\\x", "\\\\host\\x", "nothing.md", "scripts", "image.bin"],
)  # fmt: skip
async def test_a_path_cannot_leave_the_folder_of_its_skill(folder, path):
    """Behaviour 78: `..`, `~`, absolute paths and links out of the folder are refused."""
    (folder / "pdf-forms" / "link.md").symlink_to(folder / "tone" / "SKILL.md")
    (folder / "pdf-forms" / "out").symlink_to(folder / "tone")
    (folder / "pdf-forms" / "image.bin").write_bytes(b"\0\1")
    agent = agent_with(Skills(folder), USE, calls("read_skill_file", skill="pdf-forms", path=path))
    listed, result = results(await agent.run("go"))
    assert result.status == "error"
    assert "short sentences" not in result.text
    assert "link.md" not in listed.text
    assert "out/" not in listed.text


async def test_a_file_is_found_whatever_the_case_of_its_name(folder):
    """Published skills speak of FORMS.md where the file is forms.md."""
    paths = ("REFERENCE.md", "scripts/FILL.PY", "./Reference.md", "nothing.md")
    asked = [calls("read_skill_file", skill="pdf-forms", path=path) for path in paths]
    found = results(await agent_with(Skills(folder), *asked).run("go"))
    assert [part.text for part in found[:3]] == ["Fields: name, date.", "print('filled')\n", "Fields: name, date."]
    assert found[3].text.endswith("has no file 'nothing.md'; its files are reference.md, scripts/fill.py")


@tells_case
async def test_of_files_that_differ_only_in_case_the_exact_one_is_read(folder):
    (folder / "tone" / "Both.md").write_text("upper")
    (folder / "tone" / "both.md").write_text("lower")
    asked = [calls("read_skill_file", skill="tone", path=path) for path in ("Both.md", "both.md", "BOTH.md")]
    found = results(await agent_with(Skills(folder), *asked).run("go"))
    assert [(part.status, part.text[:5]) for part in found] == [("ok", "upper"), ("ok", "lower"), ("error", "Error")]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
async def test_a_pipe_in_place_of_a_file_is_not_waited_for(folder):
    (folder / "zzz").mkdir()
    os.mkfifo(folder / "zzz" / "SKILL.md")
    os.mkfifo(folder / "pdf-forms" / "pipe.md")
    skills = Skills(folder)
    assert list(skills.skipped.values()) == ["SKILL.md is not a file"]
    agent = agent_with(skills, USE, calls("read_skill_file", skill="pdf-forms", path="pipe.md"))
    listed, result = results(await agent.run("go"))
    assert ("pipe.md" in listed.text, result.status) == (False, "error")


@tells_case
def test_a_skill_whose_file_has_another_name_is_named_and_skipped(folder):
    (folder / "zzz").mkdir()
    (folder / "zzz" / "skill.md").write_text(PLAIN)
    skills = Skills(folder)
    assert list(skills.skills) == ["pdf-forms", "tone"]
    assert list(skills.skipped.values()) == ["its skill.md must be called SKILL.md"]


def test_a_link_to_a_skill_elsewhere_is_named_and_skipped(folder, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "SKILL.md").write_text("---\nname: else\ndescription: x\n---\n")
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    (folder / "file").mkdir()
    (folder / "file" / "SKILL.md").symlink_to(tmp_path / "elsewhere" / "SKILL.md")
    skills = Skills(folder)
    assert list(skills.skills) == ["pdf-forms", "tone"]
    assert [why.split(";")[0] for why in skills.skipped.values()] == [
        "its SKILL.md is a link that leaves the folder",
        "it is a link that leaves the folder",
    ]
    assert list(Skills(folder, tmp_path / "elsewhere").skills) == ["pdf-forms", "tone", "else"]


def test_a_folder_may_be_one_skill_or_have_some_below(folder):
    assert list(Skills(folder / "tone").skills) == ["tone"]
    assert list(Skills(folder.parent).skills) == ["pdf-forms", "tone"]
    skill = Skills(folder).skills["pdf-forms"]
    assert (skill.license, skill.metadata, skill.allowed_tools) == (
        "MIT", {"author": "Ann"}, ("Read", "Bash(python scripts/fill.py:*)")
    )  # fmt: skip


@pytest.mark.parametrize("options", [{"names": 3}, {"always": 1}, {"strict": "yes"}, {"name": ""}])
def test_invalid_options_are_refused(folder, options):
    with pytest.raises(ConfigError, match="Skills"):
        Skills(folder, **options)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="not a folder"):
        Skills(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="one folder or more"):
        Skills()


def test_explain_lists_the_skills(folder):
    [listed] = agent_with(Skills(folder)).explain().data["capabilities"]
    assert listed["summary"] == "2 skills: pdf-forms, tone"
