"""Parity must catch each known kind of misplaced row, and name whose row it is."""

from __future__ import annotations

import json

import numpy as np
import pytest

from harness.errors import CheckFailed
from harness.oracles import parity

LAYERS, HIDDEN, TOKENS = 6, 64, 16
DEPTHS = (1, 2, 3, 6)


def _reference(seed: int, tokens: int = TOKENS) -> np.ndarray:
    """A residual stream: every depth adds something to the one before."""
    rng = np.random.default_rng(seed)
    steps = rng.normal(size=(tokens, LAYERS + 1, HIDDEN))
    return np.cumsum(steps, axis=1).astype(np.float32)


def _wide_gap(tokens: int = TOKENS) -> np.ndarray:
    return np.full((tokens, LAYERS - 1), 0.1, dtype=np.float32)


def _compare(got: np.ndarray, reference: np.ndarray, **kwargs) -> parity.ParityReport:
    gap = kwargs.pop("routing_gap", _wide_gap(reference.shape[0]))
    return parity.compare(got, reference, kwargs.pop("depths", DEPTHS), gap, **kwargs)


@pytest.fixture
def reference() -> np.ndarray:
    return _reference(0)


@pytest.fixture
def right(reference: np.ndarray) -> np.ndarray:
    return reference[:, list(DEPTHS)].copy()


def _rms_norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weight


def test_equal_rows_pass_with_zero_error(reference, right):
    report = _compare(right, reference)
    assert report.status == parity.PASSED
    assert report.ok
    assert report.max_rel_err == 0.0
    assert report.wrong_rows == 0
    assert report.faults == ()


def test_error_is_the_largest_difference_over_the_largest_value_of_that_depth(reference, right):
    right[3, 2, 5] += 0.5
    report = _compare(right, reference)
    expected = 0.5 / np.abs(reference[:, 3]).max()
    assert report.rel_err[2] == pytest.approx(expected, rel=1e-5)
    assert report.rel_err[0] == report.rel_err[1] == report.rel_err[3] == 0.0
    assert report.max_rel_err == report.rel_err[2]


def test_float_noise_passes_and_ten_times_the_limit_fails(reference, right):
    scale = np.abs(reference[:, 1]).max()
    noisy = right.copy()
    noisy[0, 0, 0] += 0.5e-5 * scale
    assert _compare(noisy, reference).ok
    noisy[0, 0, 0] += 1e-4 * scale
    report = _compare(noisy, reference)
    assert report.status == parity.FAILED
    assert "depth 1" in report.faults[0]


@pytest.mark.parametrize(("factor", "wrong"), [(0.9e-3, 0), (1.1e-3, 1)])
def test_a_row_is_wrong_above_a_relative_norm_error_of_one_in_a_thousand(
    reference, right, factor, wrong
):
    rng = np.random.default_rng(1)
    direction = rng.normal(size=HIDDEN)
    direction /= np.linalg.norm(direction)
    right[7, 1] += (factor * np.linalg.norm(reference[7, 2]) * direction).astype(np.float32)
    report = _compare(right, reference)
    assert report.wrong_rows == wrong
    assert report.wrong_by_depth == (0, wrong, 0, 0)


def test_a_small_row_is_judged_by_its_own_norm(reference):
    # Beside a large row, an error of a small row hides in max|a-b| / max|b|.
    reference[0] *= 1e4
    got = reference[:, list(DEPTHS)].copy()
    got[5, 0] = got[6, 0] * 1e-2 + got[5, 0]
    report = _compare(got, reference)
    assert report.wrong_rows == 1
    assert report.status == parity.FAILED


@pytest.mark.parametrize(
    ("column", "shift"), [(0, -1), (1, -1), (2, -1), (3, -1), (0, 1), (1, 1), (2, 1)]
)
def test_a_shift_of_any_one_depth_is_named(reference, right, column, shift):
    depth = DEPTHS[column]
    right[:, column] = reference[:, depth + shift]
    report = _compare(right, reference)
    assert len(report.faults) == 1
    assert f"depth {depth}:" in report.faults[0]
    assert f"depth {depth + shift} of the reference" in report.faults[0]
    assert f"shifted by {shift:+d}" in report.faults[0]


def test_a_shift_of_every_depth_is_named_for_every_depth(reference):
    got = reference[:, [0, 1, 2, 5]]
    report = _compare(got, reference)
    assert len(report.faults) == 4
    assert all("shifted by -1" in fault for fault in report.faults)
    assert report.wrong_rows == TOKENS


def test_two_swapped_rows_are_named_by_each_other(reference, right):
    right[[2, 9]] = right[[9, 2]]
    report = _compare(right, reference)
    assert report.wrong_rows == 2
    assert "row 2 is row 9 of this prompt" in report.faults[0]
    assert "row 9 is row 2 of this prompt" in report.faults[0]


def test_two_swapped_prompts_of_equal_length_are_named(reference, right):
    other = _reference(1)
    swapped = other[:, list(DEPTHS)]
    report = _compare(
        swapped, reference, prompt="a", others={"b": other, "c": _reference(2, tokens=5)}
    )
    assert report.wrong_rows == TOKENS
    assert all("prompt 'b', row for row" in fault for fault in report.faults)


def test_one_row_of_another_prompt_is_named(reference, right):
    other = _reference(1, tokens=30)
    right[4] = other[21, list(DEPTHS)]
    report = _compare(right, reference, prompt="a", others={"b": other})
    assert report.wrong_rows == 1
    assert "row 4 is row 21 of prompt 'b'" in report.faults[0]


def test_rows_of_nobody_are_said_to_be_nobodys(reference, right):
    right[4] = np.random.default_rng(5).normal(size=(len(DEPTHS), HIDDEN))
    report = _compare(right, reference, others={"b": _reference(1)})
    assert "row 4 is no row of this prompt or of 1 others" in report.faults[0]


def test_a_norm_applied_to_the_last_depth_is_named(reference, right):
    weight = np.random.default_rng(3).normal(1.0, 0.2, size=HIDDEN)
    right[:, 3] = _rms_norm(reference[:, 6], weight)
    report = _compare(right, reference)
    assert len(report.faults) == 1
    assert "depth 6:" in report.faults[0]
    assert "a norm was applied" in report.faults[0]


def test_a_shift_is_not_mistaken_for_a_norm(reference, right):
    right[:, 0] = reference[:, 2]
    assert "norm" not in _compare(right, reference).faults[0].split("; ")[1]


def test_a_zero_row_and_a_row_that_is_not_finite_are_wrong_and_named(reference, right):
    right[3] = 0.0
    right[5, :, 1] = np.nan
    report = _compare(right, reference)
    assert report.wrong_rows == 2
    assert report.max_rel_err == float("inf")
    assert "row 3 is zero" in report.faults[0]
    assert "row 5 is not finite" in report.faults[0]


@pytest.mark.parametrize("shape", [(TOKENS - 1, 4, HIDDEN), (TOKENS, 3, HIDDEN), (TOKENS, 4, 32)])
def test_a_wrong_shape_fails_without_a_comparison(reference, shape):
    report = _compare(np.zeros(shape, dtype=np.float32), reference)
    assert report.status == parity.FAILED
    assert report.wrong_rows == TOKENS
    assert str(shape) in report.faults[0]


def test_a_near_tie_sets_the_prompt_aside_and_never_passes_it(reference, right):
    gap = _wide_gap()
    gap[10, 2] = 0.9e-5
    report = _compare(right, reference, routing_gap=gap)
    assert report.set_aside
    assert report.status == parity.SET_ASIDE
    assert not report.ok
    assert (report.near_tie.token, report.near_tie.moe_layer) == (10, 2)
    assert "from token 10 on" in report.explain()
    assert "MoE layer 2" in report.explain()


def test_a_gap_at_the_limit_is_no_near_tie(reference, right):
    gap = _wide_gap()
    gap[10, 2] = np.float32(1.01e-5)
    assert _compare(right, reference, routing_gap=gap).ok


def test_a_gap_that_is_not_a_number_counts_as_a_near_tie(reference, right):
    gap = _wide_gap()
    gap[0, 0] = np.nan
    assert _compare(right, reference, routing_gap=gap).status == parity.SET_ASIDE


def test_rows_before_a_near_tie_are_still_held(reference, right):
    gap = _wide_gap()
    gap[10, 2] = 0.0
    after = right.copy()
    after[12] += 1.0
    assert _compare(after, reference, routing_gap=gap).status == parity.SET_ASIDE
    before = right.copy()
    before[8] += 1.0
    report = _compare(before, reference, routing_gap=gap)
    assert report.status == parity.FAILED
    assert report.held_rows == 10


def test_a_shift_is_caught_even_in_a_prompt_set_aside(reference, right):
    gap = _wide_gap()
    gap[10, 2] = 0.0
    right[:, 1] = reference[:, 3]
    report = _compare(right, reference, routing_gap=gap)
    assert report.status == parity.FAILED
    assert "depth 3 of the reference" in report.faults[0]


def test_prompts_set_aside_are_counted_and_named_in_the_summary(reference, right):
    gap = _wide_gap()
    gap[0, 0] = 0.0
    wrong = right.copy()
    wrong[1] = right[2]
    reports = [
        _compare(right, reference, prompt="good"),
        _compare(right, reference, prompt="tie", routing_gap=gap),
        _compare(wrong, reference, prompt="bad"),
    ]
    summary = parity.summarise(reports)
    assert summary.passed == 1
    assert summary.failed == ("bad",)
    assert summary.set_aside == ("tie",)
    assert summary.share_set_aside == pytest.approx(1 / 3)
    assert summary.wrong_rows == 1


def test_a_model_without_experts_has_no_routing_gap(reference, right):
    assert _compare(right, reference, routing_gap=None).ok
    assert _compare(right, reference, routing_gap=np.zeros((TOKENS, 0), np.float32)).ok


def test_a_reference_that_is_not_finite_is_refused(reference, right):
    reference[0, 0, 0] = np.inf
    with pytest.raises(CheckFailed, match=r"parity\.reference-not-finite"):
        _compare(right, reference)


@pytest.mark.parametrize("depth", [-1, LAYERS + 1])
def test_a_depth_outside_the_reference_is_refused(reference, right, depth):
    with pytest.raises(CheckFailed, match=r"parity\.depth-outside-reference"):
        _compare(right, reference, depths=(1, 2, 3, depth))


def test_routing_gaps_of_another_prompt_are_refused(reference, right):
    with pytest.raises(CheckFailed, match=r"parity\.routing-gap-shape"):
        _compare(right, reference, routing_gap=_wide_gap(TOKENS + 1))


def test_a_prompt_of_one_token_is_compared(reference):
    one = reference[:1]
    assert _compare(one[:, list(DEPTHS)], one).ok
    report = _compare(one[:, [1, 2, 4, 6]], one)
    assert "depth 4 of the reference" in report.faults[0]


def test_the_report_is_plain_json(reference, right):
    text = json.dumps(_compare(right, reference).to_json())
    assert json.loads(text)["status"] == "passed"
