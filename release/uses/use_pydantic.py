from pydantic import BaseModel

from windlass import Agent
from windlass.testing import ScriptedModel, says


class Answer(BaseModel):
    number: int


agent = Agent(ScriptedModel(says('{"number": 4}')), output=Answer)
assert agent.run_sync("?").output == Answer(number=4)
