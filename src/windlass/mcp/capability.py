"""MCP: the tools, resources and prompts of a server of the Model Context Protocol."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windlass.errors import ConfigError, ToolError
from windlass.messages import ContentPart, Message
from windlass.tools.definitions import EffectClass

from .listings import Listing
from .offering import Offering, Rules
from .servers import MCPError, Server

if TYPE_CHECKING:
    from windlass import Hooks

    from .prompts import Prompt
    from .sources import Source

log = logging.getLogger("windlass.mcp")

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,32}")


class MCP:
    """Give an agent the tools of an MCP server: `MCP("files", command=["npx", "server-filesystem", "."])`.

    - `name`: the name of the server. Its tools are called `name__tool`.
    - `command`: the program of a server on this machine, with its arguments. No shell reads it.
    - `url`: the address of a server that speaks streamable HTTP. Give either this or `command`.
    - `env`: variables for the command. It gets these and a few harmless ones, not the whole environment.
    - `cwd`: the folder in which the command runs.
    - `headers`: headers for all requests to the address, for example with a token.
    - `prefix`: whether names of tools begin with the name of the server. Without it, a tool of the same name elsewhere
      in the agent is an error when the agent is assembled.
    - `tools`: which tools to take: names as the server knows them, or globs. All by default.
    - `effects`: the effect classes of tools, by name or glob: `{"read_*": "pure"}`. They override hints.
    - `trust_hints`: whether to believe the server's hints: tools that it calls read-only are then `pure`, those that it
      calls idempotent are `idempotent`. All others, and all tools without this, are `unsafe`.
    - `resources`: whether the model gets `list_resources` and `read_resource`, if the server has resources.
    - `optional`: whether the agent works without the server if it cannot be started. Otherwise that is an error.
    - `timeout`: after how many seconds a call has failed. None lifts it.
    - `start_timeout`: how many seconds the server has to start, and to list its tools.
    - `max_text`: how many characters of one result the model gets.
    - `max_media`: the size in bytes up to which images and other files in results are taken.
    - `max_message`: the size in bytes of a message at which the connection is given up.
    - `elicitation`: whether the server may ask people something during a call. Approvers of the agent in this process
      answer; otherwise the question is declined.
    - `answer_timeout`: how many seconds the approvers have to answer.
    - `sampling`: whether the server may ask the model of the turn something during a call, at the agent's expense.
    - `cache`: whether the list of tools is kept, so that later processes assemble the agent without the server.
    """

    def __init__(
        self,
        name: str,
        *,
        command: Sequence[str] = (),
        url: str = "",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        headers: Mapping[str, str] | None = None,
        prefix: bool = True,
        tools: Sequence[str] | None = None,
        effects: Mapping[str, EffectClass] | None = None,
        trust_hints: bool = False,
        resources: bool = True,
        optional: bool = False,
        timeout: float | None = 120.0,
        start_timeout: float = 30.0,
        max_text: int = 100_000,
        max_media: int = 5_000_000,
        max_message: int = 16_000_000,
        elicitation: bool = False,
        answer_timeout: float = 300.0,
        sampling: bool = False,
        cache: bool = True,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"MCP({name!r}): a name has 1 to 32 letters, digits, `_` or `-`")
        if bool(command) == bool(url):
            raise ConfigError(f"MCP({name!r}): give either command=[…] or url=…")
        words: Sequence[object] = command
        if isinstance(words, str) or not all(isinstance(word, str) and word != "" for word in words):
            raise ConfigError(f"MCP({name!r}, command={command!r}): give a list of texts, the program first")
        if url and not url.startswith(("http://", "https://")):
            raise ConfigError(f"MCP({name!r}, url={url!r}): the address must begin with http:// or https://")
        if ((env or cwd) and url) or (headers and command):
            raise ConfigError(f"MCP({name!r}): env and cwd belong to a command, headers belong to a url")
        times = {"timeout": timeout, "start_timeout": start_timeout, "answer_timeout": answer_timeout}
        for option, value in {**times, "max_message": max_message}.items():
            if value is not None and not value > 0:
                raise ConfigError(f"MCP({name!r}, {option}={value!r}): give a number above 0")
        if isinstance(tools, str):
            raise ConfigError(f"MCP({name!r}, tools={tools!r}): give a list of names or globs")
        for pattern, effect in (effects or {}).items():
            if effect not in ("pure", "idempotent", "unsafe"):
                raise ConfigError(
                    f"MCP({name!r}, effects={{{pattern!r}: {effect!r}}}): it must be 'pure', 'idempotent' or 'unsafe'"
                )
        self.name = f"mcp:{name}"
        self.optional = optional
        self._server = Server(
            name=name,
            command=tuple(command),
            env=dict(env or {}),
            cwd=cwd,
            url=url,
            headers=dict(headers or {}),
            max_message=max_message,
            start_timeout=start_timeout,
        )
        self._prefix = f"{name}__" if prefix else ""
        self._only = None if tools is None else tuple(tools)
        self._cache = cache
        self._rules = Rules(
            effects=dict(effects or {}),
            trust_hints=trust_hints,
            resources=resources,
            optional=optional,
            timeout=timeout,
            answer_timeout=answer_timeout,
        )
        asks = {"elicitation": elicitation, "sampling": sampling}
        self._asks = tuple([name for name, allowed in asks.items() if allowed])
        self._limits = (max_text, max_media)
        self._source: Source | None = None

    def summary(self) -> str:
        """Where the server is, for `explain`."""
        return self._server.place

    # ------------------------------------------------------------ the registrar's side

    def install(self, registrar: Hooks) -> None:
        """Register the tools of the server. The server is started if no earlier process has kept their list."""
        source = self._open()
        try:
            listing = source.first_listing(cached=self._cache)
        except (MCPError, ToolError, TimeoutError) as error:
            if not self.optional:
                raise (
                    error if isinstance(error, MCPError) else self._server.error(f"cannot be used: {error}")
                ) from error
            log.warning("%s; the agent works without it", error)
            listing = Listing()
        Offering(self._server.name, source, listing, self._rules).install(registrar)
        registrar.at_close(self.aclose)

    def _open(self) -> Source:
        if self._source is None:
            try:
                from .contents import Limits
                from .sources import Source
            except ModuleNotFoundError as error:
                raise ConfigError("MCP needs the extra 'mcp': pip install 'windlass[mcp]'") from error
            limits = Limits(*self._limits)
            self._source = Source(self._server, prefix=self._prefix, only=self._only, limits=limits, asks=self._asks)
        return self._source

    # ------------------------------------------------------------ the application's side

    async def resources(self) -> list[dict[str, Any]]:
        """The resources of the server: `uri` or `uri_template`, `name`, `description`, `media_type`."""
        return await self._open().resources()

    async def read(self, uri: str) -> tuple[ContentPart, ...]:
        """The content of the resource at a `uri`, as parts of a message."""
        return await self._open().read(uri)

    async def prompts(self) -> list[Prompt]:
        """The prompts of the server."""
        from .prompts import prompts_of

        return await self._open().request(prompts_of)

    async def prompt(self, name: str, **arguments: str) -> list[Message]:
        """The messages of a prompt: pass the last one to `run`, those before it to `import_history`."""
        from .contents import Limits
        from .prompts import messages_of

        return await self._open().request(messages_of(name, arguments, Limits(*self._limits)))

    async def aclose(self) -> None:
        """End the server. The next use starts it again. `agent.aclose()` does this, too."""
        if self._source is not None:
            await self._source.close()


__all__ = ["MCP"]
