"""What one pytest session left: its JUnit report in numbers, and the figures its tests printed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

_COUNTS = ("tests", "failures", "errors", "skipped")
_TEST = re.compile(r"(?P<id>\S+\.py::\S.*?)(?= (?:\{|PASSED|FAILED|SKIPPED|ERROR)|\s*$)")
# With -s a test's first line follows its name, or the dots of the tests before it.
_FIGURES = re.compile(r"(?:\S+\.py::\S.*? |[.FEsxX]*)(?P<json>\{.*\})\s*")


def figures(output: str) -> Iterator[dict[str, Any]]:
    """Yield every JSON object that a test printed on a line of its own, with the test's name."""
    test = None
    for line in output.splitlines():
        if found := _TEST.match(line):
            test = found["id"]
        if found := _FIGURES.fullmatch(line):
            try:
                value = json.loads(found["json"])
            except ValueError:
                continue
            yield {"test": test, "figures": value}


def summary(junit: Path) -> dict[str, Any]:
    """Return counts, seconds and names of a JUnit report; empty where there is none."""
    suites = _suites(junit)
    if not suites:
        return {}
    found: dict[str, Any] = {
        name: sum(int(suite.get(name, 0)) for suite in suites) for name in _COUNTS
    }
    found["seconds"] = round(sum(float(suite.get("time", 0)) for suite in suites), 3)
    cases = [case for suite in suites for case in suite.iter("testcase")]
    found["cases"] = [case.get("name", "") for case in cases]
    failed = [case.get("name", "") for case in cases if _failed(case)]
    return found | ({"failed": failed} if failed else {})


def _failed(case: ElementTree.Element) -> bool:
    return any(case.find(kind) is not None for kind in ("failure", "error"))


def merge(reports: Sequence[Path]) -> bytes:
    """Return one JUnit report with the suites of all of those that are there."""
    root = ElementTree.Element("testsuites")
    for report in reports:
        root.extend(_suites(report))
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))


def _suites(junit: Path) -> list[ElementTree.Element]:
    try:
        root = ElementTree.parse(junit).getroot()
    except (OSError, ElementTree.ParseError):
        return []
    return [root] if root.tag == "testsuite" else root.findall("testsuite")
