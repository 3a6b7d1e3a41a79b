"""Engines: what drives sessions beyond the process that was asked: workers of one store, and Temporal."""
