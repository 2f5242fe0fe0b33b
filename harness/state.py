"""Where the harness keeps what must outlive one command: what it started, leases, locks.

One folder a user, with records as small JSON files that are replaced whole. A record names
processes by pid and start time and is only a hint: whoever reads one checks it against the
running system. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from harness.errors import Refused

VARIABLE: Final = "HARNESS_STATE"
"""Environment variable that names another state folder."""

ENGINES: Final = "engines"
"""Subfolder with one record for each engine that was started."""

LEASES: Final = "leases"
"""Subfolder with one record for each leased engine."""


def state_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Return the state folder: ``HARNESS_STATE``, else below the XDG state folder, else home.

    It is not created here, so asking leaves no trace.
    """
    source = os.environ if environment is None else environment
    if named := source.get(VARIABLE):
        return Path(named).expanduser().absolute()
    base = Path(source.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser())
    return base / "hidden-state-harness"


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write one record whole: a reader sees the old one, the new one or none.

    Raises:
        Refused: ``state.unwritable``.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, fresh = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(record, file)
            Path(fresh).replace(path)
        except BaseException:
            Path(fresh).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise Refused(
            "state.unwritable",
            expected="a folder for the harness's own records",
            found=str(error.strerror or error),
            where=str(path.parent),
            next=f"name a folder that can be written: {VARIABLE}=DIR",
        ) from error


def read_record(path: Path) -> dict[str, Any] | None:
    """Read one record; None where it is gone, broken or no object."""
    if not path.is_file():  # a pipe would be waited for
        return None
    try:
        record = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def entries(folder: Path) -> Iterator[tuple[Path, dict[str, Any] | None]]:
    """Yield all that lies in a folder of records, by name; None for what cannot be read.

    Raises:
        Refused: ``state.no-folder``: the state folder is something else.
    """
    if folder.parent.exists() and not folder.parent.is_dir():
        raise Refused(
            "state.no-folder",
            expected="the folder of the harness's own records",
            found="something else",
            where=str(folder.parent),
            next=f"name a folder: {VARIABLE}=DIR",
        )
    with contextlib.suppress(OSError):
        for path in sorted(folder.glob("*.json")):
            yield path, read_record(path)


def records(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the readable records of a folder by name; nothing where there is no folder."""
    for path, record in entries(folder):
        if record is not None:
            yield path, record


def drop_record(path: Path) -> None:
    """Remove a record; nothing happens where it is gone or cannot be removed."""
    with contextlib.suppress(OSError):
        path.unlink()
