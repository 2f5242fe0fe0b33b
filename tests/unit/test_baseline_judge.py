"""The floor judge: what fails, what never fails, and what is no verdict at all."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.baseline._bounds import (
    LARGEST_SPREAD,
    LEAST_MARGIN_RATE,
    LEAST_MARGIN_RATIO,
    bounds,
)
from harness.baseline._series import Series, series
from harness.baseline.finding import Finding, Status, exit_code
from harness.baseline.judge import judge
from harness.errors import CheckFailed, ExitCode, HarnessError, NotComparable

RATE = "files_tok_per_s"
FEW = settings(max_examples=25)
NAMES = st.sampled_from(["ratio", "files_ratio", RATE, "tok_per_s"])


@st.composite
def recorded(draw: st.DrawFn) -> Series:
    """Runs that a baseline may rest on: five or more, spread at most 5 %."""
    middle = draw(st.floats(1e-3, 1e7))
    shares = draw(st.lists(st.floats(-0.024, 0.024), min_size=5, max_size=11))
    found = series(draw(NAMES), [middle * (1 + share) for share in shares])
    assert found.spread <= LARGEST_SPREAD
    return found


def never() -> Sequence[float]:
    raise AssertionError("a rerun was asked for")


class TestProperties:
    @FEW
    @given(recorded())
    def test_runs_equal_to_the_baseline_pass_without_a_rerun(self, known: Series) -> None:
        assert judge(known.name, known.runs, known, rerun=never).status is Status.OK

    @FEW
    @given(recorded(), st.randoms(use_true_random=False))
    def test_order_of_the_runs_decides_nothing(self, known: Series, random: object) -> None:
        mixed = list(known.runs)
        random.shuffle(mixed)  # type: ignore[attr-defined]
        assert judge(known.name, mixed, known, rerun=never).status is Status.OK

    @FEW
    @given(recorded(), st.floats(0.5, 0.8))
    def test_a_fifth_slower_is_always_red(self, known: Series, share: float) -> None:
        slow = [run * share for run in known.runs]
        found = judge(known.name, slow, known, rerun=lambda: slow)
        assert found.status is Status.RED
        assert not found.passed

    @FEW
    @given(recorded(), st.floats(0.5, 0.8))
    def test_a_fifth_slower_is_never_green_without_a_rerun(
        self, known: Series, share: float
    ) -> None:
        found = judge(known.name, [run * share for run in known.runs], known)
        assert found.status is Status.UNCONFIRMED
        assert not found.passed

    @FEW
    @given(recorded(), st.data())
    def test_noise_within_three_mads_never_asks_for_a_rerun(
        self, known: Series, data: st.DataObject
    ) -> None:
        low, high = known.median - 3 * known.mad, known.median + 3 * known.mad
        runs = data.draw(st.lists(st.floats(low, high), min_size=3, max_size=9))
        assert judge(known.name, runs, known, rerun=never).passed

    @FEW
    @given(recorded(), st.lists(st.floats(1e-3, 1e8), min_size=3, max_size=7), st.data())
    def test_red_needs_two_misses_and_a_miss_is_never_hidden(
        self, known: Series, runs: list[float], data: st.DataObject
    ) -> None:
        again = data.draw(st.lists(st.floats(1e-3, 1e8), min_size=3, max_size=7))
        calls: list[int] = []

        def rerun() -> list[float]:
            calls.append(1)
            return again

        found = judge(known.name, runs, known, rerun=rerun)
        floor = bounds(known).floor
        missed = [series(known.name, each).median < floor for each in (runs, again)]
        assert len(calls) == missed[0]
        assert (found.status is Status.RED) == all(missed)
        if missed[0]:
            assert found.status is not Status.OK
            assert found.figures["rerun"] == again

    @FEW
    @given(recorded())
    def test_floor_lies_below_the_warning_and_both_below_the_median(self, known: Series) -> None:
        found = bounds(known)
        assert 0 < found.floor < found.warn < found.median < found.ceiling

    @FEW
    @given(st.lists(st.floats(90, 110), min_size=1, max_size=9))
    def test_median_mad_and_spread_move_with_the_unit(self, runs: list[float]) -> None:
        one, thousand = series(RATE, runs), series(RATE, [1000 * run for run in runs])
        assert thousand.median == pytest.approx(1000 * one.median)
        assert thousand.mad == pytest.approx(1000 * one.mad)
        assert thousand.spread == pytest.approx(one.spread)


def test_median_mad_and_spread_of_known_runs() -> None:
    found = series(RATE, [100, 102, 98, 101, 95])
    assert (found.median, found.mad, found.spread) == (100, 2, 0.07)


def test_floor_is_three_mads_where_the_runs_are_noisy_and_a_share_where_they_are_not() -> None:
    noisy = bounds(series(RATE, [97.5, 97.5, 100, 102.5, 102.5]))
    assert (noisy.floor, noisy.warn) == (92.5, 97.5)
    calm = bounds(series(RATE, [100] * 5))
    assert calm.floor == 100 * (1 - LEAST_MARGIN_RATE)
    tight = bounds(series("ratio", [1.0] * 5))
    assert tight.floor == 1 - LEAST_MARGIN_RATIO
    assert LEAST_MARGIN_RATIO < LEAST_MARGIN_RATE


@pytest.mark.parametrize(
    ("median", "status"),
    [
        (94.9, Status.RED),
        (95.0, Status.WARN),
        (98.3, Status.WARN),
        (98.4, Status.OK),
        (105.0, Status.OK),
        (105.1, Status.WARN),
    ],
)
def test_bands_of_a_rate(median: float, status: Status) -> None:
    known = series(RATE, [100.0] * 5)
    assert judge(RATE, [median] * 3, known, rerun=lambda: [median] * 3).status is status


def test_runs_far_apart_are_worth_a_look_though_their_median_is_good() -> None:
    found = judge(RATE, [90, 100, 100, 100, 101], series(RATE, [100.0] * 5))
    assert found.status is Status.WARN
    assert "11.0%" in found.why


def test_rerun_above_the_floor_leaves_a_warning_with_both() -> None:
    known = series(RATE, [100.0] * 5)
    found = judge(RATE, [80.0] * 3, known, rerun=lambda: [100.0] * 3)
    assert found.status is Status.WARN
    assert (found.figures["runs"], found.figures["rerun"]) == ([80.0] * 3, [100.0] * 3)


def test_rerun_of_too_few_runs_confirms_nothing() -> None:
    known = series(RATE, [100.0] * 5)
    found = judge(RATE, [80.0] * 3, known, rerun=lambda: [80.0] * 2)
    assert found.status is Status.UNCONFIRMED


def test_two_runs_are_no_verdict() -> None:
    found = judge(RATE, [100.0] * 2, series(RATE, [100.0] * 5))
    assert found.status is Status.NOT_COMPARABLE
    assert "2 runs" in found.why


def test_without_a_baseline_nothing_is_green_and_the_reason_is_kept() -> None:
    found = judge(RATE, [100.0] * 5, None, rerun=never, reason="another card")
    assert found.status is Status.NOT_COMPARABLE
    assert not found.passed
    assert "another card" in str(found)
    with pytest.raises(NotComparable, match=r"baseline\.not-comparable"):
        found.require()


@pytest.mark.parametrize("run", [0.0, -1.0, math.nan, math.inf, True])
def test_run_that_is_no_speed_is_refused(run: float) -> None:
    with pytest.raises(HarnessError, match=r"baseline\.bad-run"):
        judge(RATE, [100.0, run, 100.0], None)


@pytest.mark.parametrize("name", ["seconds", "ratios", "xratio", ""])
def test_figure_of_unknown_direction_is_refused(name: str) -> None:
    with pytest.raises(HarnessError, match=r"baseline\.unknown-figure"):
        judge(name, [1.0] * 3, None)


def test_red_stops_whoever_requires_it() -> None:
    found = judge(RATE, [80.0] * 3, series(RATE, [100.0] * 5), rerun=lambda: [80.0] * 3)
    with pytest.raises(CheckFailed, match=r"baseline\.below-floor(.|\n)*the rerun too: 80"):
        found.require()


def test_exit_code_is_green_only_where_all_was_compared_and_nothing_is_red() -> None:
    def of(*statuses: Status) -> ExitCode:
        return exit_code([Finding("x", status, "", "") for status in statuses])

    assert of(Status.OK, Status.WARN) == ExitCode.OK
    assert of(Status.OK, Status.NOT_COMPARABLE) == ExitCode.UNKNOWN
    assert of(Status.UNCONFIRMED) == ExitCode.UNKNOWN
    assert of(Status.RED, Status.NOT_COMPARABLE) == ExitCode.CHECK_FAILED
    assert of() == ExitCode.UNKNOWN
