from windlass import Agent
from windlass.testing import ScriptedModel, says

schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 3}}, "required": ["n"]}
agent = Agent(ScriptedModel(says('{"n": 4}')), output=schema)
assert agent.run_sync("?").output == {"n": 4}
