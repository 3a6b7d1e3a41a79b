from windlass import Agent

agent = Agent("local:smollm2")
assert "local:smollm2" in str(agent.explain()), agent.explain()
