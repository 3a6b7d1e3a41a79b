"""Says which hooks cannot do what they seem to be meant for, and how to mend each."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from .environment import KNOWN_VARIABLES
from .matchers import MatcherError, compile_matcher, parse_rule, plain_names
from .protocol import EVENTS, TOOL_EVENTS
from .settings import KNOWN_FIELDS, Handler, NotSettings, Problem, decode_settings
from .sources import Found, scripts_of

TOOLS = frozenset(
    {
        "Agent", "AskUserQuestion", "Bash", "BashOutput", "Edit", "EnterPlanMode", "EnterWorktree", "ExitPlanMode",
        "ExitWorktree", "Glob", "Grep", "KillShell", "LSP", "ListMcpResourcesTool", "LS", "MultiEdit", "NotebookEdit",
        "NotebookRead", "PowerShell", "Read", "ReadMcpResourceTool", "SendMessage", "Skill", "SlashCommand", "Task",
        "TaskCreate", "TaskGet", "TaskList", "TaskOutput", "TaskStop", "TaskUpdate", "TeamCreate", "TeamDelete",
        "TodoRead", "TodoWrite", "ToolSearch", "WebFetch", "WebSearch", "Write",
    }
)  # fmt: skip
VALUES: dict[str, frozenset[str]] = {
    "SessionStart": frozenset({"startup", "resume", "clear", "compact", "fork"}),
    "Setup": frozenset({"init", "maintenance"}),
    "SessionEnd": frozenset({"clear", "resume", "logout", "prompt_input_exit", "other"}),
    "PreCompact": frozenset({"manual", "auto"}),
    "PostCompact": frozenset({"manual", "auto"}),
    "Notification": frozenset(
        {
            "permission_prompt", "idle_prompt", "auth_success", "elicitation_dialog", "elicitation_url_dialog",
            "elicitation_complete", "elicitation_response", "agent_needs_input", "agent_completed",
        }
    ),
}  # fmt: skip
"""What a matcher of these events can match."""

_PROGRAMS = ("jq", "node", "python3", "python", "bun", "deno", "ruby", "perl", "npx", "uv", "gh")
_MAX_SCRIPT = 500_000
_EXIT_1 = re.compile(
    r"\bexit 1\b|\bsys\.exit\(\s*1\s*\)|process\.exit\(\s*1\s*\)|process\.exitCode\s*=\s*1\b|SystemExit\(\s*1\s*\)"
)
_EXIT_2 = re.compile(
    r"\bexit 2\b|\bsys\.exit\(\s*2\s*\)|process\.exit\(\s*2\s*\)|process\.exitCode\s*=\s*2\b|SystemExit\(\s*2\s*\)"
)
_BLOCKS = re.compile(
    r"""["']?decision["']?\s*[:=]\s*\\?["']block|permissionDecision|["']?continue\\?["']?\s*:\s*[fF]alse"""
)
_VARIABLE = re.compile(
    r"""\$\{?(CLAUDE_\w+|TOOL_\w+)|(?:environ(?:\.get)?[\[(]|getenv\(|process\.env\.|ENV\[)\s*["']?(CLAUDE_\w+|TOOL_INPUT\w*)"""
)


def examine(found: Found, project: Path) -> list[Problem]:
    """All problems of the hooks of a project."""
    problems = list(found.problems)
    for path in found.untrusted:
        text = "it is not trusted as it is now, so hooks that need it do not run"
        problems.append(Problem(str(path), "trust", text, "look at it with `windlass hooks trust`"))
    seen: dict[tuple[object, ...], Handler] = {}
    for handler in found.handlers:
        problems += [
            Problem(str(handler.source), handler.place, *one) for one in _Examination(handler, project, found.env)
        ]
        key = (str(handler.source), handler.event, handler.matcher, *handler.key)
        if key in seen:
            what = f"it is the same as {seen[key].place}"
            problems.append(Problem(str(handler.source), handler.place, what, "remove one of them"))
        seen.setdefault(key, handler)
    for path in {handler.source.path for handler in found.handlers}:
        problems += _unknown_fields(path)
    return problems


def _unknown_fields(path: Path) -> Iterator[Problem]:
    """Fields of handlers that nothing reads."""
    try:
        events = decode_settings(path.read_bytes()).get("hooks", {})
    except (OSError, NotSettings):
        return
    for event, groups in events.items() if isinstance(events, dict) else ():
        for at, group in enumerate(groups if isinstance(groups, list) else ()):
            hooks = group.get("hooks") if isinstance(group, dict) else None
            for number, hook in enumerate(hooks if isinstance(hooks, list) else ()):
                for field in hook if isinstance(hook, dict) else ():
                    if field not in KNOWN_FIELDS:
                        hint = "put it beside 'hooks', in the group" if field == "matcher" else "remove it"
                        place = f"{event}[{at}].hooks[{number}]"
                        yield Problem(str(path), place, f"nothing reads the field {field!r}", hint)


class _Examination:
    """Looks at one hook. Each finding is a text and a remedy."""

    def __init__(self, handler: Handler, project: Path, env: Mapping[str, str]) -> None:
        self._known = KNOWN_VARIABLES | env.keys()
        self._handler = handler
        self._project = project
        self._event = EVENTS[handler.event]
        self._text = self._source_text()

    def __iter__(self) -> Iterator[tuple[str, str]]:
        yield from self._about_event()
        yield from self._about_matcher()
        yield from self._about_condition()
        yield from self._about_options()
        if self._handler.type == "command":
            yield from self._about_files()
            yield from self._about_variables()
            yield from self._about_answers()

    def _source_text(self) -> str:
        """The command and the scripts that it runs."""
        texts = [self._handler.command, *(self._handler.args or ())]
        for path in self._scripts():
            try:
                texts.append(path.read_bytes()[:_MAX_SCRIPT].decode("utf-8", "replace"))
            except OSError:
                continue
        return "\n".join(texts)

    def _scripts(self) -> tuple[Path, ...]:
        root = self._handler.source.root
        if root is None:
            return scripts_of(self._handler, self._project)
        words = [word for word in re.split(r"[\s\"';&|]+", self._handler.command) if "CLAUDE_PLUGIN_ROOT" in word]
        words += self._handler.args or ()
        paths = [Path(re.sub(r"\$\{?CLAUDE_PLUGIN_ROOT[^}/]*\}?", str(root), word)) for word in words]
        return tuple([path for path in paths if os.path.isfile(path)])

    # ------------------------------------------------------------ the entry

    def _about_event(self) -> Iterator[tuple[str, str]]:
        name = self._handler.event
        if not self._event.here:
            yield f"{name} never happens here", "see the table of events in the guide"
        if self._handler.type == "agent":
            yield "hooks of type 'agent' do not run here", "use type 'prompt', or a command"
        if self._event.guards and self._handler.background and self._wants_to_block():
            yield "a hook in the background cannot block: its decision is ignored", "remove 'async'"
        if self._handler.once and not self._handler.source.plugin:
            yield "'once' has an effect only in skills", "remove it"

    def _wants_to_block(self) -> bool:
        exits = _EXIT_2.search(self._text) is not None and not self._handler.rewakes
        return exits or _BLOCKS.search(self._text) is not None

    def _about_matcher(self) -> Iterator[tuple[str, str]]:
        matcher, event = self._handler.matcher, self._handler.event
        if not matcher or matcher == "*":
            return
        if self._event.matches is None:
            yield f"a matcher has no effect on {event}", "remove it; the hook always runs"
            return
        if re.fullmatch(r"\w+\([^)]*\)", matcher) and self._event.matches == "tool_name":
            name = matcher.partition("(")[0]
            hint = f'write "matcher": "{name}" and "if": "{matcher}"'
            yield f"{matcher!r} is a permission rule, and as a matcher it matches no tool", hint
            return
        try:
            compile_matcher(matcher, event)
        except MatcherError as error:
            yield f"{error}, so it matches nothing", "a matcher is a list such as Edit|Write, or a regular expression"
            return
        names = plain_names(matcher, event) or ()
        for name in names:
            if problem := self._problem_of_name(name):
                yield problem

    def _problem_of_name(self, name: str) -> tuple[str, str] | None:
        event = self._handler.event
        known = TOOLS if self._event.matches == "tool_name" else VALUES.get(event)
        if known is None or name in known:
            return None
        if name.startswith("mcp__"):
            if name.count("__") < 2:
                return f"{name!r} is the name of a server, and matches no tool", f'write "{name}__.*"'
            return None
        lowered = {one.lower(): one for one in known}
        if name.lower() in lowered:
            return f"{name!r} matches nothing: matchers are case-sensitive", f"write {lowered[name.lower()]!r}"
        what = "is no tool of Claude Code" if self._event.matches == "tool_name" else f"never happens on {event}"
        return f"{name!r} {what}", "correct it, unless a tool of yours has this name"

    def _about_condition(self) -> Iterator[tuple[str, str]]:
        condition, event = self._handler.condition, self._handler.event
        if condition is None:
            return
        if event not in TOOL_EVENTS:
            yield f"a hook with 'if' never runs on {event}", "remove 'if', and look at the input in the hook"
            return
        rule = parse_rule(condition)
        if rule is None:
            yield f"{condition!r} is not one permission rule, so the hook never runs", 'write one, as "Bash(git *)"'
            return
        names = plain_names(self._handler.matcher or "", event)
        if names and rule.tool not in names:
            yield f"its 'if' is about {rule.tool}, and its matcher is not, so it never runs", "let both name one tool"

    def _about_options(self) -> Iterator[tuple[str, str]]:
        handler = self._handler
        if handler.timeout is not None and handler.timeout >= 1000:
            yield f"its timeout is {handler.timeout:g} seconds", "if that was meant as milliseconds, divide it by 1000"
        if handler.args is None and "${user_config." in handler.command:
            yield "${user_config.…} is only filled in with 'args'", "move the words of the command into 'args'"
        if " " in str(self._project) and re.search(r"(?<![\"'])\$\{?CLAUDE_PROJECT_DIR", handler.command):
            yield "the path of the project has a space, and the variable is not quoted", 'write "$CLAUDE_PROJECT_DIR"/…'

    # ------------------------------------------------------------ its files

    def _about_files(self) -> Iterator[tuple[str, str]]:
        for word, path in self._named_paths():
            if not os.path.exists(path):
                yield f"there is no file {word!r}", "correct the path; such a hook blocks nothing"
        first = self._first_word()
        for path in self._scripts():
            try:
                head = path.read_bytes()[:200].split(b"\n", 1)[0]
            except OSError:
                continue
            if first is not None and path == first and not os.access(path, os.X_OK):
                yield f"{path.name} is not executable, so it does not run and blocks nothing", f"run: chmod +x {path}"
            if head.startswith(b"#!") and head.endswith(b"\r"):
                yield f"{path.name} has Windows line endings, so its first line names no program", "use LF line endings"
        for program in _PROGRAMS:
            if re.search(rf"(?m)(?:^|[|;&(]\s*|\s){program}\s", self._text) and shutil.which(program) is None:
                yield f"it needs {program!r}, which is not installed here", "install it"

    def _named_paths(self) -> Iterator[tuple[str, Path]]:
        """The words of the command that name a file of the project or plugin by its folder."""
        roots = {"CLAUDE_PROJECT_DIR": self._project, "CLAUDE_PLUGIN_ROOT": self._handler.source.root}
        pattern = r"[\"']?\$\{?(CLAUDE_PROJECT_DIR|CLAUDE_PLUGIN_ROOT)\}?[\"']?(/[\w./-]+\.\w+)"
        for found in re.finditer(pattern, " ".join([self._handler.command, *(self._handler.args or ())])):
            root = roots[found[1]]
            if root is not None:
                yield found[0], root / found[2].lstrip("/")

    def _first_word(self) -> Path | None:
        text = re.sub(r"\$\{?CLAUDE_PROJECT_DIR\}?", str(self._project), self._handler.command)
        text = re.sub(r"\$\{?CLAUDE_PLUGIN_ROOT[^}/]*\}?", str(self._handler.source.root), text)
        try:
            words = shlex.split(text)
        except ValueError:
            return None
        words = [word for word in words if not re.fullmatch(r"\w+=.*", word)]
        return Path(os.path.normpath(self._project / words[0])) if words else None

    # ------------------------------------------------------------ its code

    def _about_variables(self) -> Iterator[tuple[str, str]]:
        named = {found[1] or found[2] for found in _VARIABLE.finditer(self._text)}
        assigned = set(re.findall(r"(?m)(?:^|[\s;])(?:export\s+|local\s+|readonly\s+)?(\w+)=", self._text))
        for name in sorted(named - self._known - assigned):
            if not name.startswith("CLAUDE_PLUGIN_OPTION_"):
                yield f"there is no variable {name}", "read the JSON on stdin, as with: jq -r .tool_input.command"
        plain = len(shlex_words(self._handler.command)) < 2 and not self._handler.args
        script = any(path.suffix in (".sh", ".bash", "") for path in self._scripts())
        if (
            plain
            and script
            and re.search(r"\$\{?1\b", self._text)
            and not re.search(r"\(\)\s*\{|function ", self._text)
        ):
            yield "it reads the argument $1, and hooks get no arguments", "read the JSON on stdin"

    def _about_answers(self) -> Iterator[tuple[str, str]]:
        text, event = self._text, self._handler.event
        blocks = _EXIT_2.search(text) or _BLOCKS.search(text)
        if self._event.guards and _EXIT_1.search(text) and not blocks and not self._handler.background:
            yield "it exits with 1, which blocks nothing", "exit with 2 and say why on stderr"
        for found in re.finditer(r"""\\?["']decision\\?["']\s*:\s*\\?["'](\w+)""", text):
            if found[1] not in ("approve", "block"):
                yield f"decision {found[1]!r} is not valid, so the whole answer is ignored", 'use "block" or "approve"'
        for found in re.finditer(r"""permissionDecision\\?["']\s*:\s*\\?["'](\w+)""", text):
            if found[1] not in ("allow", "deny", "ask", "defer"):
                yield f"permissionDecision {found[1]!r} is not valid", 'use "allow", "deny", "ask" or "defer"'
        yield from self._about_output(text, event)
        if event in ("Stop", "SubagentStop") and blocks and "stop_hook_active" not in text:
            yield "it never looks at stop_hook_active, and may block every stop", "let it pass once that is true"

    def _about_output(self, text: str, event: str) -> Iterator[tuple[str, str]]:
        if "permissionDecision" in text and event == "PermissionRequest":
            hint = 'answer hookSpecificOutput with "decision": {"behavior": "deny"}'
            yield "PermissionRequest takes no permissionDecision", hint
        elif "permissionDecision" in text and event != "PreToolUse" and event != "PreModelSwitch":
            yield f"permissionDecision has no effect on {event}", 'use {"decision": "block", "reason": "…"}'
        elif "permissionDecision" in text and "hookSpecificOutput" not in text:
            yield "permissionDecision counts only inside hookSpecificOutput", "put it there, with hookEventName"
        if "hookSpecificOutput" in text and "hookEventName" not in text:
            yield "hookSpecificOutput without hookEventName is ignored", f'add "hookEventName": "{event}"'
        named = set(re.findall(r"""hookEventName\\?["']\s*:\s*\\?["'](\w+)""", text))
        if named and event not in named and "hook_event_name" not in text:
            yield f"its hookEventName is {', '.join(sorted(named))}, and the event is {event}", "use the same name"
        if re.search(r"modifiedToolInput|updated_input", text):
            yield "modifiedToolInput is not a field of an answer", "use hookSpecificOutput.updatedInput"
        if re.search(r"""\\?["']result\\?["']\s*:\s*\\?["']block""", text):
            yield '{"result": "block"} blocks nothing', 'use {"decision": "block", "reason": "…"}, or exit with 2'
        if re.search(r"updatedInput", text) and "tool_input" not in text:
            yield "updatedInput replaces the whole input, with the fields that stay", "copy tool_input and change it"
        if re.search(r"""permissionDecision[^\n]*(>&2|sys\.stderr|console\.error)""", text):
            yield "it writes its answer to stderr, where nothing reads JSON", "write it to stdout and exit with 0"


def shlex_words(command: str) -> list[str]:
    """The words of a command; one word if it cannot be split."""
    try:
        return shlex.split(command)
    except ValueError:
        return [command]
