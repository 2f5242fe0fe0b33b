"""The verdict of rung static in pytest's summary and in the JUnit report."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from harness.plugin._verdict import SessionVerdict, verdict_of
from harness.seams import recorded
from tests.unit.plugins import Inner, inner

__all__ = ["inner"]
pytest_plugins = ["pytester"]

ENGINE = """
import pytest

@pytest.mark.engine
def test_it():
    pass

def test_other():
    pass
"""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stands for reading the installed files; notes each time it is done."""
    seen: list[str] = []

    def surface_at(package: Path) -> object:
        seen.append(str(package))
        return recorded("0.32.0")

    monkeypatch.setattr("harness.standing.preload.surface_at", surface_at)
    return seen


def test_summary_and_junit_report_carry_the_verdict(inner: Inner, asked: list[str]) -> None:
    done = inner.run(ENGINE, "--junitxml=report.xml", "-p", "junitxml", python=inner.python)
    done.assert_outcomes(passed=2)
    done.stdout.fnmatch_lines(["gate: vLLM 0.32.0 after 0.31.0: ok*, by rung static"])
    root = ElementTree.parse(inner.pytester.path / "report.xml").getroot()
    found = {one.get("name"): one.get("value") for one in root.iter("property")}
    assert found["harness.vllm"] == "0.32.0"
    assert found["harness.gate.verdict"] in ("ok", "ok-with-patches")
    assert found["harness.gate.rung"] == "static"
    assert len(asked) == 1


def test_a_session_without_an_engine_asks_nothing_and_says_nothing(
    inner: Inner, asked: list[str]
) -> None:
    done = inner.run(ENGINE, "-k", "other", python=inner.python)
    done.assert_outcomes(passed=1, deselected=1)
    assert not asked
    assert "gate:" not in done.stdout.str()


def test_an_installation_that_cannot_be_read_says_nothing(inner: Inner) -> None:
    done = inner.run(ENGINE, python=inner.python)
    done.assert_outcomes(passed=2)
    assert "gate:" not in done.stdout.str()


def test_there_is_no_verdict_without_an_interpreter() -> None:
    assert verdict_of(None) is None


def test_words_name_both_releases_and_the_rung() -> None:
    said = str(SessionVerdict("0.33.0", "0.32.0", "regressed"))
    assert said == "gate: vLLM 0.33.0 after 0.32.0: regressed, by rung static"
