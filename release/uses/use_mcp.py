import sys

from windlass import Agent
from windlass.mcp import MCP
from windlass.testing import ScriptedModel, calls, says

with open("server.py", "w") as file:
    file.write(
        "from windlass import Agent\nfrom windlass.testing import ScriptedModel, says\n"
        "agent = Agent(ScriptedModel(says('from the server')), name='helper', store='memory:')\n"
    )
server = MCP("helper", command=[sys.executable, "-m", "windlass", "serve-mcp", "server.py"], trust_hints=True)
agent = Agent(ScriptedModel(calls("helper__run", message="Hi."), says("done")), capabilities=[server])
result = agent.run_sync("Ask it.")
assert "from the server" in str(result.why()), result.why()
