"""Hooks: registered, compiled once, then only called."""
