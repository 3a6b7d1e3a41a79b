"""Two hosts for the conformance kit of Agent Hooks: each drives a real agent through its public API."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Literal

from agent_hooks import ApprovalResolver, CompositionConfig, EnforcementMode, HostRegistry, InterceptionEmitter
from agent_hooks.ctk.harness import Capability, ModelResponse, RunOutcome, RunRecord, Scenario, ToolSpec
from agent_hooks.ctk.runner import load_vectors
from agent_hooks.ctk.scripted import redact_paths
from agent_hooks.emitter import IdentityProvider

from windlass import Agent, Completed, ModelReply, Retracted, Stopped, StopReason, TextDelta, TextPart, ToolCallPart
from windlass.compat.agent_hooks import AgentHooks, host_surface
from windlass.messages import Message, ToolResult
from windlass.testing import ScriptedModel, breaks
from windlass.testing.models import Scripted
from windlass.tools.schema_tools import SchemaTool

BLOCKED = (StopReason.HALTED, StopReason.WITHHELD)


class BufferedHost:
    """Text is held back until the whole reply is judged. `streams` says how the turn is run."""

    name = "windlass"
    incremental = False
    streams = False
    tool_seam_host_error: Literal["continue", "terminate"] = "continue"
    capabilities: ClassVar[set[Capability]] = set(Capability) - {Capability.INCREMENTAL_OUTPUT}

    def __init__(self) -> None:
        self.released = ""
        self.persisted = b""

    def host_surface(self) -> Any:
        return host_surface(incremental=self.incremental, tool_errors=self.tool_seam_host_error)

    def declaration(self) -> None:
        return None

    def setup(
        self,
        scenario: Scenario,
        interceptors: list[Any],
        resolver: ApprovalResolver | None,
        mode: EnforcementMode,
        composition: CompositionConfig,
        identity_provider: str | None,
        redact_for_approval: list[str] | None = None,
    ) -> None:
        provider: Any = identity_provider
        if identity_provider == "ctk-fault":
            provider = IdentityProvider("ctk-fault", _fault)
        emitter = InterceptionEmitter(mode=mode, resolver=resolver, composition=composition, identity_provider=provider)
        for interceptor in interceptors:
            emitter.register(interceptor)
        if redact_for_approval:
            emitter.set_approval_redactor(lambda context: redact_paths(context, redact_for_approval))
        self._start(scenario, emitter)

    def setup_declared(self, scenario: Scenario, document: dict[str, Any], registry: HostRegistry) -> None:
        self._start(scenario, InterceptionEmitter.from_declaration_value(document, registry))

    def _start(self, scenario: Scenario, emitter: InterceptionEmitter) -> None:
        self.scenario, self.emitter = scenario, emitter
        self.tool_log: list[dict[str, Any]] = []

    async def run(self) -> RunRecord:
        scenario = self.scenario
        model = ScriptedModel(*[self._reply(number) for number in range(len(scenario.model_script))])
        tools = [_tool(spec, self.tool_log) for spec in scenario.tools.values()]
        with TemporaryDirectory() as folder:
            agent = Agent(model, tools=tools, store=f"sqlite:///{folder}/log.db", name="kit").with_capability(
                AgentHooks(self.emitter, incremental=self.incremental, tool_errors=self.tool_seam_host_error),
                band="guard",
            )
            result = await self._result(agent, scenario.input["content"])
            await agent.aclose()
            self.persisted = bytes_in(Path(folder))
        outcome = result.outcome
        blocked = isinstance(outcome, Stopped) and outcome.reason in BLOCKED
        completed = isinstance(outcome, Completed)
        records = self.emitter.results
        return RunRecord(
            outcome=RunOutcome.COMPLETED if completed else RunOutcome.BLOCKED if blocked else RunOutcome.ERROR,
            final_output=result.text if completed else None,
            tool_invocations=self.tool_log,
            error=None if completed or blocked else repr(outcome),
            identities=[(record.input_identity, record.enforced_identity) for record in records],
            records=[record.to_wire() for record in records],
        )

    async def _result(self, agent: Agent[Any, Any], message: str) -> Any:
        if not self.streams:
            return await agent.run(message)
        streaming, retracted = agent.stream(message), False
        async for event in streaming:
            retracted = retracted or isinstance(event, Retracted)
            if isinstance(event, TextDelta):
                assert not retracted, "text came after a retraction"
                self.released += event.text
        return streaming.result

    def _reply(self, number: int) -> Scripted:
        """A reply of the script, with the pieces that `Scenario.from_wire` has dropped."""
        response = self.scenario.model_script[number]
        wire = _wire(self.scenario, number)
        reply = Scripted(_model_reply(response), tuple(wire.get("stream", ())))
        return breaks(reply) if wire.get("stream_truncated") else reply

    def teardown(self) -> None:
        self.scenario = self.emitter = None  # type: ignore[assignment]


class StreamingBufferedHost(BufferedHost):
    """The same, with every turn streamed."""

    streams = True


class TerminatingHost(BufferedHost):
    """The same, with turns that end when an interceptor fails at a tool call."""

    tool_seam_host_error: Literal["continue", "terminate"] = "terminate"


class IncrementalHost(BufferedHost):
    """Text streams, each piece after a verdict on the text up to its end."""

    incremental = streams = True
    capabilities: ClassVar[set[Capability]] = set(Capability)


def bytes_in(folder: Path) -> bytes:
    """All that is in the files of a folder."""
    return b"".join([file.read_bytes() for file in sorted(folder.iterdir())])


def _fault(context: Any) -> str:
    raise RuntimeError("the identity provider fails")


def _tool(spec: ToolSpec, log: list[dict[str, Any]]) -> SchemaTool:
    def run(arguments: dict[str, Any]) -> ToolResult:
        value, is_error = spec.invoke(arguments)
        log.append({"name": spec.name, "args": arguments})
        return ToolResult.of(value, status="error" if is_error else "ok")

    return SchemaTool(run, name=spec.name, description="", schema={"type": "object"}, inline=True)


def _model_reply(response: ModelResponse) -> ModelReply:
    text = [TextPart(response.content)] if response.content else []
    calls = [ToolCallPart(c["name"], json.dumps(c["args"]), vendor_id=c["id"]) for c in response.tool_calls]
    return ModelReply(Message("assistant", (*text, *calls)), finish=response.finish_reason)


def _wire(scenario: Scenario, number: int) -> dict[str, Any]:
    """The reply as the vector has it. The kit does not hand it on, so it is found by its content."""
    content = scenario.model_script[number].content
    for vector in load_vectors(None):
        given = vector["scenario"]
        if given["input"] == scenario.input and len(given.get("model_script", [])) > number:
            wire: dict[str, Any] = given["model_script"][number]["respond"]
            if wire["content"] == content and "stream" in wire:
                return wire
    return {}
