import windlass.compat.agent_hooks as bridge

assert bridge.__all__
for name in bridge.__all__:
    getattr(bridge, name)
