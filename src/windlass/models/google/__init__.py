"""Google's Gemini models, through the `google-genai` SDK."""

from __future__ import annotations

from .client import GoogleGemini

__all__ = ["GoogleGemini"]
