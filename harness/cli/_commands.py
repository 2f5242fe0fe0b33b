"""The commands by name, each imported when it is added: of all of them one is run."""

from __future__ import annotations

from importlib import import_module

import typer

COMMANDS = {
    "demo": "demo",
    "extract": "extract",
    "verify": "verify",
    "compare": "compare",
    "doctor": "doctor",
    "preflight": "preflight",
    "gate": "gate",
    "plan": "plan",
    "rehearse": "rehearse",
    "engine": "app",
    "reclaim": "reclaim",
    "baseline": "app",
    "model": "app",
    "patches": "app",
    "evidence": "app",
    "surface": "app",
}
"""Name, which is its module's too -> the function there, or ``app`` for a group of commands."""


def add(root: typer.Typer, name: str) -> None:
    """Add a command or a group of commands."""
    module = import_module(f"harness.cli._{name}")
    found = COMMANDS[name]
    if found == "app":
        root.add_typer(module.app, name=name)
    else:
        root.command(name, epilog=getattr(module, "EPILOG", None))(getattr(module, found))
