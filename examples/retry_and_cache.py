"""Two wraps: one retries a busy model, one serves a tool's results from a cache."""

from windlass import Agent, ModelCall, ModelReply, ModelRequest, ToolCall, ToolResult, tool
from windlass.errors import RateLimited
from windlass.testing import ScriptedModel, calls, says
from windlass.types import CallModel, CallTool

asked: list[str] = []


@tool(effect="pure", inline=True)
def weather(city: str) -> str:
    """The weather in a city."""
    asked.append(city)
    return f"rain in {city}"


ask = calls("weather", city="Bergen")
model = ScriptedModel(RateLimited("slow down"), ask, ask, says("Take an umbrella."))
agent = Agent(model, tools=[weather])
cache: dict[str, ToolResult] = {}


@agent.wrap(ModelCall)
async def try_again(request: ModelRequest, call_next: CallModel) -> ModelReply:
    try:
        return await call_next(request)
    except RateLimited as error:
        print(f"the model says: {error}; trying again")
        return await call_next(request)


@agent.wrap(ToolCall, tool="weather")
async def remember(call: ToolCall, call_next: CallTool) -> ToolResult:
    if call.digest not in cache:
        cache[call.digest] = await call_next(call)
    return cache[call.digest]


result = agent.run_sync("Will it rain in Bergen?")
print(result.text, f"(the tool ran {len(asked)} time)")
assert result.text == "Take an umbrella."
assert asked == ["Bergen"]
assert len(model.requests) == 4
