"""What a model is shown: assembled anew for each step from the state alone."""
