"""Print what the jobs of gate.yml hand on: ``python ci/github/outputs.py verdict.json``."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

_PLAIN = re.compile(r"[A-Za-z0-9.+_-]{1,60}")


def main(path: str) -> int:
    """Print ``release=`` and ``verdict=``; nothing where the gate gave no verdict."""
    try:
        body = json.loads(Path(path).read_text(encoding="utf-8"))
        found = {"release": body["candidate"]["release"], "verdict": body["verdict"]}
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    # What comes from a package becomes part of a workflow: only plain words may.
    if all(isinstance(value, str) and _PLAIN.fullmatch(value) for value in found.values()):
        print("\n".join(f"{name}={value}" for name, value in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
