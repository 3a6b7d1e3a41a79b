import windlass.server as server

for name in server.__all__:
    getattr(server, name)
