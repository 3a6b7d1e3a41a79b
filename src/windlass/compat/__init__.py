"""Bridges: hooks and middlewares of other systems run in the lifecycle of Windlass."""
