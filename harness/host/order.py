"""The order that a reaper gets: what it is to start, in which environment, and what it is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import harness
from harness.host.leftovers import private
from harness.host.leftovers.record import OWNER, TOKEN, owner_mark
from harness.host.processes import Process
from harness.host.spec import HostSpec, engine_environment


def order_of(
    spec: HostSpec,
    folder: Path,
    *,
    token: str,
    owner: Process,
    notes: Path,
    record: Path,
    control: int,
    status: int,
) -> dict[str, Any]:
    """Prepare an engine's private folder and return the reaper's order, as ``reaper.py`` reads it.

    Args:
        spec: What is started.
        folder: The private folder; the engine gets a working directory and a way to our code in it.
        token: The mark of all processes of this engine.
        owner: The process that starts it.
        notes: The file of death notes.
        record: Where the engine's record lies.
        control: The engine's end of the control socket.
        status: The reaper's end of the status pipe.
    """
    link = folder / "lib"
    link.mkdir()
    (link / "harness").symlink_to(Path(harness.__file__).absolute().parent)
    (folder / "run").mkdir()
    environment = engine_environment(spec, link)
    for name, value in private.temporary_environment(folder, environment).items():
        environment[name] = spec.env.get(name, value)
    environment["HARNESS_CONTROL_FD"] = str(control)
    environment["HARNESS_DEATH_NOTES"] = str(notes)
    environment[TOKEN] = token
    environment[OWNER] = owner_mark(owner)
    return {
        "argv": [str(spec.python.absolute()), "-m", spec.module, *spec.args],
        "env": environment,
        "cwd": str(spec.cwd.absolute() if spec.cwd else folder / "run"),
        "control": control,
        "status": status,
        "parent": owner.pid,
        "private": str(folder),
        "notes": str(notes),
        "tree": str(folder / "tree.json"),
        "record": str(record),
        "grace_s": spec.grace_s,
        "core_dumps": spec.core_dumps,
    }
