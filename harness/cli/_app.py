"""All commands and their options."""

from __future__ import annotations

from harness.cli import _surface
from harness.cli._commands import COMMANDS, add
from harness.cli._root import app

__all__ = ["app"]

for _name in COMMANDS:
    add(app, _name)
# The group's former name.
app.add_typer(_surface.app, name="seams", hidden=True)
