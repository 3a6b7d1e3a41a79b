from windlass import Agent

agent = Agent("google:gemini-2.5-flash")
assert "google:gemini-2.5-flash" in str(agent.explain()), agent.explain()
