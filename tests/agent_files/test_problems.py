"""What is wrong with an agent file is said in full: file, line, key, what is legal, and what was probably meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.agent_files import AgentFileError, load_agent_file
from windlass.agent_files.documents import MAX_BYTES

HEAD = 'model = { use = "parts:model" }\n'


def problems_of(folder: Path, text: str) -> list[str]:
    file = folder / "a.toml"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(AgentFileError) as raised:
        load_agent_file("a.toml")
    assert all(str(problem) in str(raised.value) for problem in raised.value.problems)
    return [str(problem).removeprefix("a.toml:") for problem in raised.value.problems]


GOLDEN = {
    "syntax": ("model = \n", "1: not valid TOML: Invalid value"),
    "end": ('model = "x:y"\ntools = [', "2: not valid TOML: Invalid value (at end of document)"),
    "twice": ('model = "x:y"\nmodel = "x:z"\n', "2: not valid TOML: Cannot overwrite a value"),
    "utf8": ("# fine\n# \udcff\n", "2: the file is not valid UTF-8"),
    "deep": ("x = " + "[" * 5000, "1: lists or tables are nested too deeply"),
    "digits": ("x = " + "1" * 5000, "1: not valid TOML: Exceeds the limit"),
    "large": ("# " + "x" * MAX_BYTES, f"1: the file has {MAX_BYTES + 1} bytes"),
    "missing": ('name = "x"\n', "1: the key 'model' is missing"),
    "key": (HEAD + "stor = 1\n", "2: stor: there is no such key; did you mean 'store'? Legal: name, model, "),
    "model": ('model = "gpt-5"\n', "1: model: 'gpt-5' is not a model such as 'openai:gpt-5'"),
    "vendor": ('model = "opnai:gpt-5"\n', "1: model: model='opnai:gpt-5' is not a model: use 'openai:gpt-5'"),
    "kind": (HEAD + "tools = 3\n", "2: tools: must be a list, each item a name such as 'module:function', not a whole"),
    "item": (HEAD + 'tools = [\n  "parts:add",\n  3,\n]\n', "4: tools[1]: must be a name such as 'module:function', n"),
    "choice": (HEAD + 'unmatched = "aks"\n', "2: unmatched: 'aks' is not legal; did you mean 'ask'? Legal: allow, ask"),
    "bound": (HEAD + "[limits]\nmax_steps = 0\n", "3: limits.max_steps: must be a whole number, 1 or more"),
    "boolean": (HEAD + "limits.max_steps = true\n", "2: limits.max_steps: must be a whole number, 1 or more, not true"),
    "infinite": (HEAD + "limits.usd = inf\n", "2: limits.usd: must be a number above 0"),
    "store": (HEAD + 'store = "pg://me:secret@host"\n', "2: store: must be the address of a store: 'user' (a file in"),
    "module": (HEAD + 'tools = ["no_module:x"]\n', "2: tools[0]: there is no module 'no_module' here or among instal"),
    "name": (HEAD + 'tools = ["parts:ad"]\n', "2: tools[0]: module 'parts' has no 'ad'; did you mean 'add'?"),
    "tool": (
        HEAD + 'tools = ["parts:add", "parts:named"]\n',
        "2: tools[1]: tool 'named': parameter 'name' has no annot",
    ),
    "key in file": ('model = { use = "openai:x", api_key = "sk-1" }\n', "1: model.api_key: keys do not belong into f"),
    "both": (HEAD + 'system = "x"\nsystem_file = "y"\n', "3: system_file: give either system or system_file"),
    "no file": (HEAD + 'system_file = "y"\n', "2: system_file: 'y' cannot be read: No such file"),
    "capability": (
        HEAD + "[capabilities.rety]\n",
        "2: capabilities.rety: no installed package offers a capability 'rety'; did you mean 'retry'?",
    ),
    "option": (
        HEAD + "[capabilities.retry]\natempts = 4\n",
        "3: capabilities.retry.atempts: there is no such option; "
        "did you mean 'attempts'? Legal: use, band, attempts, on, models",
    ),
    "type": (
        HEAD + '[capabilities.retry]\ndelay = "long"\n',
        "3: capabilities.retry.delay: must be a number, not a te",
    ),
    "value": (
        HEAD + "[capabilities.retry]\ndelay = 1\nattempts = 0\n",
        "4: capabilities.retry.attempts: Retry(attempts=",
    ),
    "needed": (HEAD + "[capabilities.moderate]\n", "2: capabilities.moderate: the option 'classifier' is missing"),
    "nested": (
        HEAD + '[capabilities.permissions]\nasks = { questin = "x" }\n',
        "3: capabilities.permissions.asks.quest",
    ),
    "load": (HEAD + '[capabilities.retry]\nload = "x"\n', "3: capabilities.retry.load: Retry cannot be loaded from a "),
    "band": (
        HEAD + '[capabilities.retry]\nband = "gard"\n',
        "3: capabilities.retry.band: 'gard' is not legal; did you",
    ),
    "event": (
        HEAD + '[[hooks]]\nverb = "gate"\nevent = "ToolCaling"\nrun = "parts:refuse"\n',
        "4: hooks[0].event: 'ToolCaling' is not legal; did you mean 'ToolCalling'?",
    ),
    "wrap": (
        HEAD + '[[hooks]]\nverb = "wrap"\nevent = "ToolCalling"\nrun = "parts:refuse"\n',
        "4: hooks[0].event: wrap"
        " does not take 'ToolCalling'; did you mean 'ToolCall'? Legal: ModelCall, Step, ToolCall, Turn",
    ),
    "hook": (
        HEAD + '[[hooks]]\nverb = "inject"\nevent = "TurnStarting"\nrun = "parts:question"\ncostly = true\n',
        "2: hooks[0]: inject 'question' (parts.py",
    ),
    "no verb": (HEAD + '[[hooks]]\nrun = "parts:add"\n', "2: hooks[0]: the key 'verb' is missing"),
    "circle": (
        HEAD + '[subagents.me]\nfile = "a.toml"\n',
        "3: subagents.me.file: this file is an agent above this one",
    ),
    "absent": (HEAD + '[subagents.x]\nfile = "x.toml"\n', "3: subagents.x.file: there is no file"),
    "inline": (
        HEAD + "[subagents.x]\nmodel = 3\n",
        "3: subagents.x.model: must be a model such as 'openai:gpt-5' or a ",
    ),
    "settings": ('model = { use = "parts:model" }\nsettings = 3\n', "2: settings: must be a table, not a whole number"),
}


@pytest.mark.parametrize(("text", "message"), GOLDEN.values(), ids=GOLDEN)
def test_a_mistake_is_named_with_its_line(folder: Path, text: str, message: str):
    (problem,) = problems_of(folder, text)
    assert problem.startswith(message)


def test_no_error_repeats_what_may_be_a_secret(folder: Path):
    for text in (HEAD + 'store = "pg://me:secret@host"\n', 'model = { use = "openai:x", api_key = "secret" }\n'):
        assert "secret" not in "".join(problems_of(folder, text))


def test_all_mistakes_are_named_at_once(folder: Path):
    (folder / "below.toml").write_text('model = "x"\n')
    text = 'modle = 1\ntools = ["parts:ad"]\n[limits]\nmax_stps = 1\n[capabilities.retry]\natempts = 1\ndelay = "x"\n'
    text += (
        '[[hooks]]\nverb = "wrap"\nevent = "ToolCalling"\nrun = "parts:refuse"\n[subagents.x]\nfile = "below.toml"\n'
    )
    found = problems_of(folder, text)
    lines = [problem.partition(": ")[0] for problem in found]
    assert lines == ["1", "1", "2", "4", "6", "7", "10", "below.toml:1"]


def test_lines_are_those_of_dotted_keys_quoted_keys_and_later_tables(folder: Path):
    text = '"model" = { use = "parts:model" }\n# comment\nsystem = """\nx = 1\n[not.a.table]\n"""\n'
    text += "limits . 'max_vetoes' = -1\n[[hooks]]\nverb = 'gate'\nrun = 'parts:refuse'\nevent = 'ToolCalling'\n"
    text += "[[hooks]]\n\nverb = 'gat'\nrun = 'parts:refuse'\n"
    found = problems_of(folder, text)
    assert [problem.partition(": ")[0] for problem in found] == ["7", "14"]


def test_an_error_in_a_module_names_its_line(folder: Path):
    (folder / "bad.py").write_text("x = 1\ny = 1 / 0\n")
    (problem,) = problems_of(folder, HEAD + 'tools = ["bad:y"]\n')
    assert "'bad' cannot be imported: ZeroDivisionError" in problem
    assert "bad.py:2)" in problem
