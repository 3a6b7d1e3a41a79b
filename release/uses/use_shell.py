from windlass.capabilities import Permissions
from windlass.messages import ToolCall

rules = Permissions(deny=["bash(rm *)"], allow=["bash(ls *)"])
call = ToolCall("1", "bash").replace(arguments={"command": "ls x && rm y"})
assert rules.check(call).decision == "deny", rules.check(call)
