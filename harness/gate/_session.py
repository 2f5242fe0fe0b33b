"""One pytest session in a child, and what its JUnit report says. Pure but for the child."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

GRACE_S = 120.0
"""For an engine's orderly end, after pytest was told to end."""

_FIGURES = "figures."
_NO_BOX = ("preflight.", "no usable GPU", "usable: ")
"""In words of a test that was not run for what the machine is, and not for what vLLM did."""
_CODES = {
    2: "it was interrupted",
    3: "an error inside pytest",
    4: "it does not take these options",
    5: "no test was collected",
}


@dataclass(frozen=True)
class Session:
    """What became of a pytest session.

    Attributes:
        code: Exit code; negative: the signal that ended it; None: its time was over.
        tests: Test cases in its report.
        passed: Cases that passed.
        skipped: Cases that were skipped.
        failed: Names of cases that failed.
        unfit: Why cases did not run, of those that the machine kept from running.
        first: The first line of the first failure.
        properties: What plugin and tests told of the session: name -> text.
        figures: What tests measured, by test.
    """

    code: int | None
    tests: int = 0
    passed: int = 0
    skipped: int = 0
    failed: tuple[str, ...] = ()
    unfit: tuple[str, ...] = ()
    first: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    figures: Mapping[str, list[Any]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether something ran and nothing stands against it."""
        return self.code == 0 and self.passed > 0 and not self.failed and not self.unfit

    @property
    def end(self) -> str:
        """How it ended, in words."""
        if self.code is None:
            return "its time was over"
        if self.code < 0:
            return f"it was ended by signal {-self.code}"
        return _CODES.get(self.code, f"it ended with exit code {self.code}")


def run(words: Sequence[str], report: Path, *, cwd: Path, limit_s: float) -> Session:
    """Run a session; its output goes to standard error, for whoever waits.

    Args:
        words: The command line.
        report: Where it writes its JUnit report.
        cwd: Folder to run it in.
        limit_s: Seconds; then it gets SIGTERM, on which the plugin ends engine and session in
            order. Not SIGINT: a job in the background inherits that it is ignored.
    """
    # 2: standard output is for the verdict alone.
    with subprocess.Popen(words, cwd=cwd, stdin=subprocess.DEVNULL, stdout=2) as child:
        try:
            code: int | None = child.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            _end(child)
            code = None
        except BaseException:
            _end(child)
            raise
    return read(report, code)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(timeout=GRACE_S)
    except subprocess.TimeoutExpired:
        # The engine's reaper ends what is left when its parent is gone.
        child.kill()
        child.wait()


def read(report: Path, code: int | None) -> Session:
    """Read a JUnit report; one that is not there, or is cut, tells of no test."""
    try:
        root = ElementTree.parse(report).getroot()
    except (OSError, ElementTree.ParseError):
        return Session(code)
    cases = list(root.iter("testcase"))
    bad = {str(case.get("name")): said for case in cases if (said := _against(case)) is not None}
    unfit = {name: said for name, said in bad.items() if any(word in said for word in _NO_BOX)}
    failed = tuple(name for name in bad if name not in unfit)
    skipped = sum(case.find("skipped") is not None for case in cases)
    told = {str(one.get("name")): str(one.get("value")) for one in root.iter("property")}
    return Session(
        code,
        tests=len(cases),
        passed=len(cases) - skipped - sum(_against(case) is not None for case in cases),
        skipped=skipped,
        failed=failed,
        unfit=tuple(dict.fromkeys(unfit.values())),
        first=bad[failed[0]] if failed else "",
        properties={k: v for k, v in told.items() if not k.startswith(_FIGURES)},
        figures=_figures(root),
    )


def _against(case: ElementTree.Element) -> str | None:
    for kind in ("failure", "error"):
        found = case.find(kind)
        if found is not None:
            text = found.get("message") or found.text or kind
            return next(iter(text.strip().splitlines()), kind)
    return None


def _figures(root: ElementTree.Element) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for one in root.iter("property"):
        name = str(one.get("name"))
        if name.startswith(_FIGURES):
            try:
                value = json.loads(str(one.get("value")))
            except ValueError:
                continue
            found.setdefault(name.removeprefix(_FIGURES), []).append(value)
    return found
