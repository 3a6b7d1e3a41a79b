import windlass.engines.temporal as engine

for name in engine.__all__:
    getattr(engine, name)
