"""Preflight on recorded boxes: the story's, one for each kind of public report, and others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fixtures import fake_nvml
from harness.preflight import CHECKS, Report, Verdict, census

REPORTS = Path(__file__).parents[2] / "docs" / "preflight.md"
STATES = {name: fake_nvml.load(name) for name in fake_nvml.names()}
IN_PROCESS = [name for name, state in STATES.items() if not state["expect"].get("child")]
SECTION_C = {46, 47, 48, 49, 50, 51, 53, 54, 55, 56, 58, 59, 60, 61, 64, 65, 67}


def held(report: Report, state: dict[str, Any]) -> None:
    """Hold a report to what its state expects."""
    expect = state["expect"]
    shown = "\n".join(map(str, report.findings))
    assert report.verdict == expect["verdict"], shown
    problems = {(f.check, f.device) for f in report.problems}
    wanted = {tuple(entry) for entry in expect.get("findings", ())}
    assert wanted <= problems, shown
    # Nothing is blamed on a device that is not to blame.
    assert {device for _, device in problems} <= {device for _, device in wanted}, shown
    notes = {(f.check, f.device) for f in report.findings if f.verdict is Verdict.CLEAN}
    assert {tuple(entry) for entry in expect.get("notes", ())} <= notes, shown
    for text in expect.get("says", ()):
        assert text in shown
    for text in expect.get("never", ()):
        assert text not in shown
    if "next" in expect:
        assert expect["next"] in [f.next for f in report.problems]
    if "used" in expect:
        assert [row.device for row in report.rows if row.used_by_engine] == expect["used"]


@pytest.mark.parametrize("name", IN_PROCESS)
def test_a_recorded_box_gets_its_verdict(name: str) -> None:
    held(fake_nvml.examine(STATES[name]), STATES[name])


@pytest.mark.parametrize("name", [name for name in STATES if name not in IN_PROCESS])
def test_a_box_that_hangs_or_crashes_the_probe_gets_its_verdict(name: str, tmp_path: Path) -> None:
    state = STATES[name]
    found = census(fake_nvml.probe(state, tmp_path, deadline=state["expect"]["child"]))
    held(fake_nvml.examine(state, found), state)
    assert found.seconds < state["expect"]["child"] + 0.5


def test_every_kind_of_public_report_has_its_state() -> None:
    named = {int(r[1:]) for state in STATES.values() for r in state.get("reports", ())}
    assert named >= SECTION_C


def test_every_check_has_a_state_that_fails_it() -> None:
    failed = {
        check for state in STATES.values() for check, _ in state["expect"].get("findings", ())
    }
    assert failed == {check.id for check in CHECKS}


def test_every_problem_names_a_next_step() -> None:
    for name in IN_PROCESS:
        for finding in fake_nvml.examine(STATES[name]).problems:
            assert finding.next, (name, finding)
            assert not re.search(r"\bkill\b", finding.next), (name, finding)


def test_the_storys_dirty_box_names_device_figure_owner_and_next_command() -> None:
    report = fake_nvml.examine(STATES["story-dirty"])
    (row,) = [row for row in report.rows if row.verdict is not Verdict.CLEAN]
    assert (row.device, row.used, row.pid) == (2, 75728 << 20, None)
    assert row.next == "sudo fuser -v /dev/nvidia2"


@pytest.mark.parametrize("check", [check.id for check in CHECKS])
def test_a_check_that_is_left_out_finds_nothing(check: str) -> None:
    names = [
        name
        for name in IN_PROCESS
        if check in [found for found, _ in STATES[name]["expect"].get("findings", ())]
    ]
    assert names
    for name in names:
        report = fake_nvml.examine(STATES[name], skip=(check,))
        if check == "nvml.answers" and report.census.count is None:
            # It cannot be left out alone: GPUs that are not known are not clean.
            assert report.verdict is Verdict.UNKNOWN
        else:
            assert check not in {finding.check for finding in report.findings}


@pytest.mark.parametrize("name", IN_PROCESS)
def test_whoever_leaves_out_all_checks_gets_no_finding(name: str) -> None:
    report = fake_nvml.examine(STATES[name], skip=("all",))
    assert (report.verdict, report.findings) == (Verdict.CLEAN, ())
