from windlass import Agent
from windlass.capabilities import Telemetry
from windlass.testing import ScriptedModel, says

assert Agent(ScriptedModel(says("x")), capabilities=[Telemetry()]).run_sync("Hi").text == "x"
