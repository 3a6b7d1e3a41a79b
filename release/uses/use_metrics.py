from windlass import Agent
from windlass.capabilities import Metrics
from windlass.testing import ScriptedModel, says

metrics = Metrics()
Agent(ScriptedModel(says("x")), capabilities=[metrics]).run_sync("Hi")
assert "windlass_turns_total" in str(metrics.text()), metrics.text()
