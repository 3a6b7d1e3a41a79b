"""Agents over HTTP: sessions, turns, streams and approvals, for any client that has the token."""

from __future__ import annotations

from .app import Server

__all__ = ["Server"]
