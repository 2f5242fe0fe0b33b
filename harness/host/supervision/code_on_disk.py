"""The code that an engine's processes import from us: has it changed since the start?

Workers are started seconds to minutes into a load and import then, so an edit in between
mixes two versions in one engine, or makes the load one of code that is gone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).absolute().parents[2]
ROOTS: Final = (PACKAGE / "inside", PACKAGE / "patches")
"""What runs inside of an engine: our own side of it, and the patches."""


@dataclass(frozen=True)
class CodeState:
    """Files of code at one moment.

    Attributes:
        digests: SHA-256 of each file by its path below the package.
        stats: Size and time of each, by which a change is suspected cheaply.
    """

    digests: dict[str, str]
    stats: dict[str, tuple[int, int]]

    @property
    def digest(self) -> str:
        """One SHA-256 for all files, names included."""
        lines = "".join(f"{name} {digest}\n" for name, digest in sorted(self.digests.items()))
        return hashlib.sha256(lines.encode()).hexdigest()


def read(roots: Sequence[Path] = ROOTS) -> CodeState:
    """Read every Python file below the roots."""
    digests, stats = {}, {}
    for name, path in _files(roots):
        try:
            found = path.stat()
            digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError:
            continue  # It is being replaced; the next look sees what came of it.
        stats[name] = (found.st_size, found.st_mtime_ns)
    return CodeState(digests, stats)


def changed(start: CodeState, roots: Sequence[Path] = ROOTS) -> list[str]:
    """Return the files that are not as they were, by name; contents decide, not times."""
    now: dict[str, Path] = dict(_files(roots))
    found = [name for name in start.digests if name not in now]
    for name, path in now.items():
        try:
            stat = path.stat()
            if start.stats.get(name) == (stat.st_size, stat.st_mtime_ns):
                continue
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError:
            digest = ""
        if start.digests.get(name) != digest:
            found.append(name)
    return sorted(found)


def _files(roots: Sequence[Path]) -> list[tuple[str, Path]]:
    return [
        (f"{root.name}/{path.relative_to(root)}", path)
        for root in roots
        for path in sorted(root.rglob("*.py"))
    ]
