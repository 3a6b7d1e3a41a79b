"""The context of a model: assembled anew for each step, from the state alone."""
