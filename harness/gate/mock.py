"""Rung mock: the patches' unit suite, on a fake vLLM made from the candidate's surface."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

from harness.gate.candidate import version_of
from harness.gate.scale import Rung, RungResult, RungStatus, Verdict
from harness.seams import Surface
from harness.seams.recorded import ADDED

SUITE = Path(__file__).resolve().parents[2] / "tests" / "unit" / "patches"
"""Where a checkout has the suite; it is not packed."""
_LIMIT_S = 300.0
_TOLD = 3


def climb(surface: Surface, *, suite: Path = SUITE) -> RungResult:
    """Run the suite on the candidate and nothing else.

    Only generation 1 has patches: the result says nothing of the other.
    """
    version = version_of(surface.release)
    # What patches say of releases knows no pre-release; unversioned files are the newest.
    release = version.base_version if version is not None else "9999"
    if surface.unread:
        return _skipped(f"no mock can be made: {next(iter(surface.unread.values()))}")
    if not suite.is_dir():
        return _skipped("needs a checkout: the patches' unit suite is not packed")
    if importlib.util.find_spec("pytest") is None:
        return _skipped("needs pytest: pip install 'hidden-state-harness[test]'")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="harness-mock-") as folder:
        surfaces = Path(folder) / "surfaces"
        surfaces.mkdir()
        renamed = Surface(release, surface.build, surface.entries, surface.probes)
        (surfaces / f"{release}.json").write_text(renamed.dumps(), encoding="utf-8")
        report = Path(folder) / "junit.xml"
        try:
            done = _run(suite, release, surfaces, report)
        except subprocess.TimeoutExpired:
            return _result(RungStatus.UNKNOWN, f"no end within {_LIMIT_S:g} s", started, 0, [])
        tests, failed = _read(report)
    if done.returncode == 0 and tests:
        return _result(RungStatus.PASSED, f"{tests} tests passed", started, tests, [])
    if failed:
        told = ", ".join(failed[:_TOLD])
        said = f"{len(failed)} of {tests} tests failed: {told}"
        return _result(RungStatus.FAILED, said, started, tests, failed)
    last = (done.stdout.strip().splitlines() or ["pytest said nothing"])[-1]
    return _result(RungStatus.UNKNOWN, f"the suite did not run: {last}", started, 0, [])


def _run(
    suite: Path, release: str, surfaces: Path, report: Path
) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "pytest", str(suite), "-q", "--tb=no", "-k", release]
    words += ["-p", "no:cacheprovider", f"--junitxml={report}", "--no-header", "-W", "ignore"]
    return subprocess.run(
        words,
        cwd=suite.parents[2],
        env={**os.environ, ADDED: str(surfaces)},
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def _read(report: Path) -> tuple[int, list[str]]:
    if not report.is_file():
        return 0, []
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = [
        str(case.get("name"))
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]
    return len(cases), failed


def _skipped(reason: str) -> RungResult:
    return RungResult(Rung.MOCK, RungStatus.SKIPPED, reason)


def _result(
    status: RungStatus, reason: str, started: float, tests: int, failed: list[str]
) -> RungResult:
    words = {
        RungStatus.PASSED: Verdict.OK,
        RungStatus.FAILED: Verdict.REGRESSED,
        RungStatus.UNKNOWN: Verdict.UNKNOWN,
    }
    return RungResult(
        Rung.MOCK,
        status,
        reason,
        time.monotonic() - started,
        figures={"tests": tests, "failed": failed},
        verdicts={"patched": words[status]},
    )
