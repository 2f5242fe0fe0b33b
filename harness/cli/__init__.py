"""The ``harness`` command. Each command is thin: options in, one call, facts out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.cli._main import main

if TYPE_CHECKING:
    from harness.cli._app import app

__all__ = ["app", "main"]


def __getattr__(name: str) -> Any:
    """Give ``app``, which imports all commands, to whom asks for it."""
    if name != "app":
        raise AttributeError(name)
    from harness.cli._app import app

    return app
