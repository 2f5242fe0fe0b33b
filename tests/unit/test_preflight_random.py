"""Preflight on boxes drawn at random: never CLEAN where an engine must not be started."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from fixtures import fake_nvml
from fixtures.fake_nvml.strategies import states, unfit
from harness.preflight import Verdict


def judge(boxes: int, *, derandomize: bool) -> Counter[tuple[bool, Verdict]]:
    """Hold the verdicts of drawn boxes against what was drawn, and count them."""
    counted: Counter[tuple[bool, Verdict]] = Counter()

    @settings(
        max_examples=boxes,
        deadline=None,
        derandomize=derandomize,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(states())
    def one(state: dict[str, Any]) -> None:
        reasons, report = unfit(state), fake_nvml.examine(state)
        counted[bool(reasons), report.verdict] += 1
        assert not reasons or report.verdict is not Verdict.CLEAN, reasons

    one()
    return counted


def fair(counted: Counter[tuple[bool, Verdict]]) -> None:
    """Boxes of both kinds were drawn, and a fit one is mostly called so."""
    fit = sum(count for (bad, _), count in counted.items() if not bad)
    drawn = counted.total()
    assert 0.1 * drawn < fit < 0.9 * drawn, counted
    assert counted[False, Verdict.CLEAN] > 0.8 * fit, counted


def test_no_box_is_called_clean_that_is_not() -> None:
    fair(judge(500, derandomize=True))


@pytest.mark.slow
def test_ten_thousand_boxes_and_none_is_called_clean_that_is_not() -> None:
    counted = judge(10_000, derandomize=False)
    assert counted.total() >= 9_000
    fair(counted)
