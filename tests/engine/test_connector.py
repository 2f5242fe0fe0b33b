"""Bookkeeping of our connector, without an engine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine
SCRIPT = Path(__file__).parent / "_scripts" / "connector_reports.py"


def test_only_saved_requests_are_reported_as_sent_and_once() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    first, second = json.loads(done.stdout.strip().splitlines()[-1])
    assert first == [["saved"], None]  # neither a request without capture nor an aborted one
    assert second == [None, None]
