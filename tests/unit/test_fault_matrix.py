"""Every fault is noticed in time, told in one readable error, and leaves nothing behind."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from harness import state
from tests.unit.fault_matrix import FAULTS, Fault, fits, run


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(state.VARIABLE, str(tmp_path / "state"))


def test_there_are_twelve_faults() -> None:
    assert len({fault.name for fault in FAULTS}) == 12


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_fault_is_noticed_told_and_leaves_nothing(fault: Fault, tmp_path: Path) -> None:
    outcome = run(fault, tmp_path)
    assert fits(fault, outcome) == [], outcome.text


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_fault_at_any_time_leaves_nothing(fault: Fault, tmp_path: Path) -> None:
    for number in range(20):
        folder = tmp_path / str(number)
        folder.mkdir()
        outcome = run(fault, folder, delay=random.uniform(0, 0.7))
        assert fits(fault, outcome) == [], outcome.text
