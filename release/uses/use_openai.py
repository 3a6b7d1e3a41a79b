from windlass import Agent

agent = Agent("openai:gpt-5")
assert "openai:gpt-5" in str(agent.explain()), agent.explain()
