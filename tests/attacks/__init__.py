"""Attacks from outside on the hooks, generated over the matrix of events, decisions and ways of running."""
