"""Responses: requests, replies and streams."""
