"""What all tests share."""

from hypothesis import settings

# A slow machine is no failure, and a run can be repeated.
settings.register_profile("windlass", deadline=None, derandomize=True)
settings.load_profile("windlass")
