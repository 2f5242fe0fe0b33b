"""Digests of our own code, as evidence keeps them: was it taken with what lies here now?"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

# What decides a row: the engine's side, the settings, what judges. Not the gate, not printing.
_CODE = ("inside", "recipe", "capture", "layers", "oracles")


def code_digest() -> str:
    """Return ``sha256:...`` over the code that decides a row, comments included."""
    root = Path(__file__).parent.parent
    files = sorted(path for room in _CODE for path in (root / room).rglob("*.py"))
    return _digest((str(path.relative_to(root)), path.read_bytes()) for path in files)


def patch_digest() -> str:
    """Return ``sha256:...`` over the patches for speculators."""
    root = Path(__file__).parent.parent / "patches"
    return _digest(
        (str(path.relative_to(root)), path.read_bytes()) for path in sorted(root.rglob("*.py"))
    )


def _digest(parts: Iterable[tuple[str, bytes]]) -> str:
    digest = hashlib.sha256()
    for name, data in parts:
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    return f"sha256:{digest.hexdigest()}"
