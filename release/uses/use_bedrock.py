from windlass import Agent

agent = Agent("bedrock:anthropic.claude-3-haiku-20240307-v1:0")
assert "bedrock:anthropic.claude-3-haiku-20240307-v1:0" in str(agent.explain()), agent.explain()
