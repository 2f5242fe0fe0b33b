"""Runs the command line with no more than the command that its first word names."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from harness.cli._commands import COMMANDS, add
from harness.cli._root import app
from harness.cli._streams import hold_standard


def main() -> None:
    """Run the command line."""
    hold_standard()
    app_of(sys.argv[1:])()


def app_of(words: Sequence[str]) -> typer.Typer:
    """Return the root with the command that the words begin with, or with all of them."""
    if words and words[0] in COMMANDS:
        add(app, words[0])
        return app
    from harness.cli._app import app as whole

    return whole
