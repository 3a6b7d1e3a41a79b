"""What the bridge keeps of each session while the process lives: its transcript, its variables, texts to deliver."""

from __future__ import annotations

import hashlib
import shlex
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .aliases import Aliases
from .environment import data_place
from .naming import folder_name, session_names
from .transcripts import Transcript
from .verdicts import Verdict

MOST = 4096
"""So many sessions are known at a time; the one that was used least recently is forgotten."""
MAX_ENV = 20_000


class SessionState:
    """One session that a person opened, with the sub-agents in it."""

    def __init__(self, name: str, folder: Path, make: Callable[..., Transcript]) -> None:
        self.name = name
        self.folder = folder
        self.started = False
        self.pending: list[str] = []
        self.wakes: list[str] = []
        self.allowed: dict[str, str] = {}
        self.judged: dict[tuple[str, str], Verdict] = {}
        self.batches: dict[str, int] = {}
        self.folders: dict[str, str] = {}
        self._make = make
        self._transcripts: dict[str, Transcript] = {}
        self._env_path: Path | None = None
        self._env = ("", "")

    def transcript(self, agent: str = "") -> Transcript:
        """The transcript of the session, or of a sub-agent in it."""
        known = self._transcripts.get(agent)
        if known is None:
            path = self.folder / f"{self.name}.jsonl"
            if agent:
                path = self.folder / self.name / "subagents" / f"{agent}.jsonl"
            known = self._transcripts[agent] = self._make(path, self.name, agent=agent)
        return known

    def take_pending(self) -> list[str]:
        """The texts that hooks in the background left for the model."""
        texts, self.pending = self.pending, []
        return texts

    def take_wakes(self) -> list[str]:
        """The texts for which a hook in the background wants to wake the model."""
        texts, self.wakes = self.wakes, []
        return texts

    # ------------------------------------------------------------ CLAUDE_ENV_FILE

    @property
    def env_file(self) -> str:
        """The file into which hooks write variables for later commands. It is made on first use, and stays for the
        process that resumes the session."""
        if self._env_path is None:
            self._env_path = self.folder / f"{self.name}.env.sh"
            self._env_path.touch(mode=0o600)
        return str(self._env_path)

    def load_env(self) -> None:
        """Read what hooks have written."""
        try:
            with open(self.env_file, "rb") as file:
                text = file.read(MAX_ENV).decode("utf-8", "replace").replace("\0", "")
        except OSError:
            text = ""
        digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()
        self._env = (digest, text) if text.strip() else ("", "")

    def with_env(self, command: str) -> str:
        """A command for a shell that first runs what hooks have written, once for each shell and content."""
        digest, text = self._env
        if not digest:
            return command
        test = f'[ "${{__windlass_hooks_env-}}" = {digest} ]'
        return f"{test} || {{ __windlass_hooks_env={digest}; eval {shlex.quote(text)}; }}\n{command}"

    def forget_files(self) -> None:
        """Remove what no later process needs."""
        if self._env_path is not None:
            self._env_path.unlink(missing_ok=True)


class SessionStates:
    """The sessions of one agent."""

    def __init__(self, cwd: str, mask: Callable[[Any], Any], aliases: Aliases, origin: str) -> None:
        self._cwd, self._mask, self._aliases, self._origin = cwd, mask, aliases, origin
        self._known: OrderedDict[str, SessionState] = OrderedDict()
        self._folder: Path | None = None

    def of(self, session: str) -> tuple[SessionState, str]:
        """What is kept of a session, and the id of the sub-agent whose session it is; empty if it is none."""
        name, agent = session_names(session)
        state = self._known.get(name)
        if state is None:
            if self._folder is None:
                self._folder = data_place("projects", folder_name(self._cwd))
            state = self._known[name] = SessionState(name, self._folder, self._transcript)
            if len(self._known) > MOST:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(name)
        return state, agent

    def named(self, name: str) -> SessionState | None:
        """What is kept of the session that hooks know by this id."""
        return self._known.get(name)

    def open(self) -> list[SessionState]:
        """The sessions that were at work in this process and have not ended."""
        return [state for state in self._known.values() if state.started]

    def forget_all(self) -> None:
        """Forget all sessions, which another process may resume."""
        self._known.clear()

    def forget(self, session: str) -> None:
        """Forget a session that is over."""
        state = self._known.pop(session_names(session)[0], None)
        if state is not None:
            state.forget_files()

    def _transcript(self, path: Path, session: str, *, agent: str) -> Transcript:
        return Transcript(
            path, session, self._cwd, mask=self._mask, aliases=self._aliases, origin=self._origin, agent=agent
        )
