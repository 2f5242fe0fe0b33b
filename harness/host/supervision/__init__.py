"""Watching an engine's load and work: what is observed, and what is done about it."""
