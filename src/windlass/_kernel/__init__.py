"""The kernel: one loop over seven composites. Read `loop.py` first."""
