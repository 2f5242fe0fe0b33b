"""Which files an engine was loaded from, so that a change after the load can be named."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from blake3 import blake3

import harness
from harness.patches import PATCHES

IN_ENGINE: Final = ("errors.py", "inside", "layers")
"""What the engine's processes import from us: a change there would not be in force. The keeper
only forwards messages, whose form has a number of its own; the rest runs anew in every session."""

_SUFFIXES = (".py", ".so")


def package() -> Path:
    """Return the folder of the harness that runs here."""
    return Path(harness.__file__).absolute().parent


def code_digests(root: Path | None = None) -> dict[str, str]:
    """Return a digest for each file of ours that lives on in an engine, by ``harness/...`` name."""
    base = package() if root is None else root
    return {
        f"harness/{path.relative_to(base).as_posix()}": _digest(path)
        for name in IN_ENGINE
        for path in _sources(base / name)
    }


def patch_digests(root: Path | None = None) -> dict[str, str]:
    """Return a digest for each file of the patch set: a patch by its id, others by file name."""
    base = package() if root is None else root
    ids = {patch.id.replace("-", "_"): patch.id for patch in PATCHES}
    return {
        f"patch `{ids[path.stem]}`"
        if path.stem in ids
        else f"harness/{path.relative_to(base).as_posix()}": _digest(path)
        for path in _sources(base / "patches")
    }


def table(folder: Path | None, suffixes: tuple[str, ...] = _SUFFIXES) -> dict[str, str]:
    """Return size and modification time of a folder's files, by name below the folder.

    Half a terabyte of weights, and the thousands of files of an engine, are not read for it;
    only who sets a file's time back after a change of equal size goes unseen.

    Args:
        folder: The folder; None or a missing one has no files.
        suffixes: Endings of the files that count; empty: all of the folder itself.
    """
    found: dict[str, str] = {}
    for top, folders, names in os.walk(folder) if folder is not None else ():
        folders[:] = [name for name in folders if name != "__pycache__"] if suffixes else []
        for name in names:
            if not suffixes or name.endswith(suffixes):
                path = Path(top, name)
                try:
                    seen = path.stat()
                except OSError:
                    continue  # a dangling link, or gone in this moment: its absence is noticed
                key = f"{folder.name}/{path.relative_to(folder).as_posix()}" if folder else name
                found[key] = f"{seen.st_size} bytes of {seen.st_mtime_ns}"
    return found


def _sources(path: Path) -> Iterator[Path]:
    if path.suffix:
        yield from (path,) if path.is_file() else ()
    else:
        yield from sorted(path.rglob("*.py"))


def _digest(path: Path) -> str:
    return blake3(path.read_bytes()).hexdigest()[:32]
