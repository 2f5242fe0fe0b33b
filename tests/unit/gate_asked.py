"""``harness gate --json``, asked in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from harness.cli import app
from tests.unit.edited import installed


def run(*words: str, code: int = 0) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["gate", *words, "--json"])
    assert done.exit_code == code, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def refused(*words: str, code: int) -> str:
    said = run(*words, code=code)["error"]["id"]
    assert isinstance(said, str)
    return said


def checkout(root: Path) -> Path:
    """Write the files at the seams of the installed vLLM: a source folder of an unknown version."""
    installed().write(root)
    (root / "vllm" / "_version.py").unlink(missing_ok=True)
    return root
