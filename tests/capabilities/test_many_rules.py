"""Many permission rules: comparing only those that can matter gives the verdict that comparing all of them gives."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from windlass.capabilities import Permissions
from windlass.capabilities.rules import RuleSet
from windlass.messages import ToolCall

PROGRAMS = ["git", "rm", "ls", "sudo", "env", "npm", "xargs", "python", "/usr/bin/git", "./run", "git*", "*"]
WORDS = [
    "push", "pull", "-f", "--force", "-rf", "-fr", "-r", "origin", "main", "src/a.py", "../up", "src/../b",
    "/etc/passwd", "*", "*.py", "?", "[ab]*", "a b", "--", "~/x", "pu*", "http://x/y", "status", "-c", "x",
]  # fmt: skip
UNKNOWN = ["$X", "$(date)", "`id`", "${Y:-z}", "pre$X", "*.txt", "$X/bin", "'a b'", '"$Z"', "{a,b}"]
JOINS = [" && ", "; ", " | ", "\n", " || "]

pattern = st.builds(
    lambda program, words, end: " ".join([program, *words]) + end,
    st.sampled_from(PROGRAMS),
    st.lists(st.sampled_from(WORDS), max_size=3),
    st.sampled_from(["", "", " *", ":*"]),
)
rule = st.one_of(
    pattern.map(lambda glob: f"bash({glob})" if ")" not in glob else "bash"),
    pattern.map(lambda glob: f"bash(command={glob})"),
    st.sampled_from(
        ["bash(cwd=/srv/*)", "bash(command=git *, cwd=/srv/*)", "bash", "bash(timeout=5)", "read(path=src/*)"]
    ),
)
simple = st.builds(
    lambda words: " ".join(words),
    st.tuples(st.sampled_from([*PROGRAMS, *UNKNOWN]), *[st.sampled_from([*WORDS, *UNKNOWN, *PROGRAMS])] * 2)
    .flatmap(lambda words: st.integers(1, 3).map(lambda count: words[:count])),
)  # fmt: skip
script = st.builds(
    lambda first, rest: first + "".join([join + one for join, one in rest]),
    simple,
    st.lists(st.tuples(st.sampled_from(JOINS), simple), max_size=2),
)
wrapped = st.one_of(
    script,
    simple.map(lambda one: f"sudo -u x {one}"),
    simple.map(lambda one: f"bash -c {json.dumps(one)}"),
    simple.map(lambda one: f"X=1 timeout 5 {one}"),
    simple.map(lambda one: f"find . -exec {one} {{}} +"),
    st.sampled_from(["'", "", "python -c 'x'", "eval $X", ">", "$X foo", "echo hi > out.txt"]),
)


def linear(self: RuleSet, *_: Any, **__: Any) -> Any:
    return self.rules


def verdicts(rules: dict[str, list[str]], calls: list[ToolCall]) -> list[tuple[Any, ...]]:
    permissions = Permissions(**rules, folder="/srv")  # type: ignore[arg-type]
    found = [permissions.check(call) for call in calls]
    return [(one.decision, str(one.rule), one.why, one.command) for one in found]


filler = [f"bash(tool{n} --all made{n} *)" for n in range(16)]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(rule, max_size=12),
    st.lists(rule, max_size=12),
    st.lists(rule, max_size=12),
    st.lists(wrapped, min_size=1, max_size=4),
    st.booleans(),
)
@example(["bash(git push --force *)"], [], [], ["git $X", "$X foo", "git push -f main", "sudo git push --force"], True)
@example(["bash(git * --no-verify)"], [], [], ["git push $X"], True)
@example([], [], ["bash(command=git *, cwd=/srv/*)"], ["git status"], False)
def test_the_index_changes_no_verdict(
    deny: list[str], ask: list[str], allow: list[str], scripts: list[str], fill_first: bool
) -> None:
    given = {"deny": deny, "ask": ask, "allow": allow}
    rules = {kind: [*filler, *own] if fill_first else [*own, *filler] for kind, own in given.items()}
    calls = [
        ToolCall("s/1/1", "bash", json.dumps({"command": script, "cwd": "/srv/app", "timeout": 5}))
        for script in scripts
    ]
    found = verdicts(rules, calls)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RuleSet, "candidates", linear)
        assert found == verdicts(rules, calls)


@pytest.mark.parametrize(
    "command", ["$X foo", "git $X", "sudo git push $X", "ls -la", "git push origin7 x", "sudo -u x $W --v", "tool3"]
)
@pytest.mark.parametrize("form", ["git push origin{n} *", "git push --force origin{n} *", "tool{n} * made{n}"])
@pytest.mark.parametrize("kind", ["deny", "ask", "allow"])
def test_of_a_thousand_rules_few_are_compared(
    kind: str, form: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = 0
    whole = RuleSet.candidates

    def counted(self: RuleSet, *given: Any, **options: Any) -> Any:
        nonlocal compared
        found = whole(self, *given, **options)
        compared += len(found)
        return found

    rules: Any = {kind: [f"bash({form.format(n=n)})" for n in range(1000)]}
    permissions = Permissions(**rules)
    call = ToolCall("s/1/1", "bash", json.dumps({"command": command}))
    monkeypatch.setattr(RuleSet, "candidates", counted)
    verdict = permissions.check(call)
    assert compared <= 25, (verdict, compared)
