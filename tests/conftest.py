"""What all tests share."""

from hypothesis import settings

from windlass._hooks import dispatch

from .servers.llama import llama, weights
from .servers.postgres import database, postgres

__all__ = ["database", "llama", "postgres", "weights"]

# A slow machine is no failure, and a run can be repeated.
settings.register_profile("windlass", deadline=None, derandomize=True)
settings.load_profile("windlass")

# A machine that stalls must not look like a hook that blocks.
dispatch.BLOCKED_AFTER = 2.0
