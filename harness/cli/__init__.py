"""The ``harness`` command. Each command is thin: options in, one call, facts out."""

from __future__ import annotations

from harness.cli._app import app, main

__all__ = ["app", "main"]
