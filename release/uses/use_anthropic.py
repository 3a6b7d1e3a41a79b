from windlass import Agent

agent = Agent("anthropic:claude-sonnet-4-5")
assert "anthropic:claude-sonnet-4-5" in str(agent.explain()), agent.explain()
