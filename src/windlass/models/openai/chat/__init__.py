"""Chat Completions: requests, replies and streams."""
