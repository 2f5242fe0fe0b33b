from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.oracles.content import check_sample
from harness.oracles.cross_sample import CrossSample
from harness.oracles.finding import Finding

DTYPES = ("float32", "bfloat16", "float16")
DEPTHS = (1, 3, 6)
TOKENS, WIDTH = 9, 32
Array = npt.NDArray[Any]


def narrow(values: Array, dtype: str) -> Array:
    """Float32 values as a sample holds them."""
    values = np.ascontiguousarray(values, np.float32)
    if dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype)


def rows(seed: int = 0, tokens: int = TOKENS, columns: int = 3) -> Array:
    return np.random.default_rng(seed).normal(size=(tokens, columns, WIDTH)).astype(np.float32)


def token_ids(seed: int = 0, tokens: int = TOKENS) -> Array:
    return np.random.default_rng(seed + 10_000).integers(0, 1000, tokens)


def check(hidden: Array, dtype: str = "float32", **changes: Any) -> list[Finding]:
    wanted: dict[str, Any] = {
        "expected_ids": token_ids(tokens=TOKENS),
        "depths": DEPTHS,
        "dtype": dtype,
        "hidden_size": WIDTH,
    }
    wanted.update(changes)
    ids = wanted.pop("token_ids", token_ids(tokens=TOKENS))
    return check_sample("s", hidden, ids, **wanted)


def checks(findings: list[Finding]) -> list[str]:
    return [finding.check for finding in findings]


@pytest.mark.parametrize("dtype", DTYPES)
def test_good_samples_give_no_findings(dtype: str) -> None:
    for seed in range(400):
        hidden = narrow(rows(seed) * 10.0 ** (seed % 5 - 2), dtype)
        assert check(hidden, dtype) == []


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [(0, 0, 0), (TOKENS - 1, 2, WIDTH - 1), (4, 1, 7)])
def test_one_value_that_is_not_finite_is_found(
    dtype: str, value: float, place: tuple[int, int, int]
) -> None:
    hidden = rows()
    hidden[place] = np.copysign(value, value)
    (finding,) = check(narrow(hidden, dtype), dtype)
    assert finding.check == "finite"
    assert f"depth {DEPTHS[place[1]]}" in finding.expected
    assert f"first row {place[0]}" in finding.found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sign", [-1, 1])
def test_largest_and_smallest_finite_values_are_fine(dtype: str, sign: int) -> None:
    largest = {"float32": 3.4028235e38, "bfloat16": 3.3895314e38, "float16": 65504.0}[dtype]
    smallest = {"float32": 1e-45, "bfloat16": 9.2e-41, "float16": 6e-8}[dtype]
    hidden = rows()
    hidden[3, 1, 4] = sign * largest
    hidden[3, 1, 5] = sign * smallest
    assert check(narrow(hidden, dtype), dtype) == []


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("zeros", ["plus", "minus", "both"])
def test_a_row_of_zeros_of_either_sign_is_found(dtype: str, zeros: str) -> None:
    hidden = rows()
    hidden[5, 2] = {"plus": 0.0, "minus": -0.0, "both": 0.0}[zeros]
    if zeros == "both":
        hidden[5, 2, ::3] = -0.0
    (finding,) = check(narrow(hidden, dtype), dtype)
    assert finding.check == "zero-row"
    assert finding.found == f"1 of {TOKENS} rows, first row 5"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [1.0, -2.5, 1e-3])
def test_a_row_of_one_value_is_found(dtype: str, value: float) -> None:
    hidden = rows()
    hidden[2, 0] = value
    (finding,) = check(narrow(hidden, dtype), dtype)
    assert finding.check == "constant-row"


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_nearly_zero_and_a_nearly_constant_row_are_fine(dtype: str) -> None:
    hidden = rows()
    hidden[2, 0] = 0.0
    hidden[2, 0, 9] = -1e-7
    hidden[3, 0] = 1.0
    hidden[3, 0, 9] = -1.0
    hidden[4, 0] = -1.0
    hidden[4, 0, 9] = -1.0078125
    assert check(narrow(hidden, dtype), dtype) == []


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("a", "b"), [(0, 1), (0, 2), (1, 2)])
@pytest.mark.parametrize("rows_equal", [slice(None), slice(4, 5), slice(0, 1)])
def test_two_equal_layers_are_found_even_in_one_row(
    dtype: str, a: int, b: int, rows_equal: slice
) -> None:
    hidden = rows()
    hidden[rows_equal, b] = hidden[rows_equal, a]
    (finding,) = check(narrow(hidden, dtype), dtype)
    assert finding.check == "equal-columns"
    assert finding.expected.startswith(f"depth {DEPTHS[a]} and depth {DEPTHS[b]}")


def test_layers_with_equal_extremes_but_other_values_are_fine() -> None:
    hidden = rows()
    hidden[:, 1] = hidden[:, 0, ::-1]
    assert check(hidden) == []


@pytest.mark.parametrize(
    ("change", "name", "found"),
    [
        ({"expected_ids": token_ids()[:-1]}, "rows", "9"),
        ({"depths": (1, 6)}, "columns", "3"),
        ({"hidden_size": 64}, "hidden-size", "32"),
        ({"token_ids": token_ids()[:-1]}, "token-ids", "shape [8]"),
        ({"token_ids": token_ids()[::-1]}, "token-ids", "differ"),
        ({"dtype": "bfloat16"}, "dtype", "float32"),
        ({"dtype": "float16"}, "dtype", "float32"),
    ],
)
def test_each_wrong_shape_and_label_is_named(change: dict[str, Any], name: str, found: str) -> None:
    matching = [finding for finding in check(rows(), **change) if finding.check == name]
    assert len(matching) == 1
    assert found in matching[0].found


def test_one_wrong_token_is_named_by_its_position() -> None:
    ids = token_ids()
    ids[6] += 1
    (finding,) = check(rows(), token_ids=ids)
    assert finding.check == "token-ids"
    assert finding.expected == f"{ids[6] - 1} at position 6"
    assert finding.found == f"{ids[6]} (1 of {TOKENS} differ)"


def test_swapped_axes_are_named() -> None:
    assert set(checks(check(rows().transpose(1, 0, 2)))) == {"rows", "columns"}


def test_sample_without_rows_is_named_and_does_not_crash() -> None:
    assert checks(check(rows()[:0])) == ["rows"]


def test_padding_embedding_of_zeros_is_legal_at_depth_zero_only() -> None:
    hidden, ids = rows(), token_ids()
    ids[[2, 5]] = 0
    hidden[[2, 5], 0] = 0.0
    same = {"token_ids": ids, "expected_ids": ids}
    assert check(hidden, depths=(0, 3, 6), **same) == []
    assert checks(check(hidden, **same)) == ["zero-row"]
    hidden[7, 0] = 0.0  # another token: no padding embedding explains that
    assert checks(check(hidden, depths=(0, 3, 6), **same)) == ["zero-row"]
    hidden[:, 0] = 0.0
    assert checks(check(hidden, depths=(0, 3, 6), **same)) == ["zero-row"]


def test_a_whole_column_of_zeros_is_no_padding() -> None:
    hidden, ids = rows(), np.zeros(TOKENS, int)
    hidden[:, 0] = 0.0
    found = check(hidden, depths=(0, 3, 6), token_ids=ids, expected_ids=ids)
    assert checks(found) == ["zero-row"]


def test_a_view_that_is_not_contiguous_is_checked_alike() -> None:
    wide = np.random.default_rng(0).normal(size=(TOKENS, 6, WIDTH)).astype(np.float32)
    wide[4, 2] = 0.0
    assert checks(check(wide[:, ::2])) == ["zero-row"]


# --- cross-sample -------------------------------------------------------------------------


def cross(
    *samples: tuple[str, Array, Array], depths: tuple[int, ...] = DEPTHS, **bounds: Any
) -> list[Finding]:
    oracle = CrossSample(**bounds)
    for name, hidden, ids in samples:
        oracle.add(name, hidden, ids, depths=depths)
    return oracle.findings()


@pytest.mark.parametrize("dtype", DTYPES)
def test_different_samples_share_no_rows(dtype: str) -> None:
    samples = [(str(i), narrow(rows(i), dtype), token_ids(i)) for i in range(300)]
    assert cross(*samples) == []


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block", [slice(None), slice(3, 4), slice(0, 1), slice(8, 9)])
def test_rows_of_another_sample_are_found(dtype: str, block: slice) -> None:
    a, b = rows(1), rows(2)
    b[block, -1] = a[block, -1]
    found = cross(
        ("a", narrow(a, dtype), token_ids(1)),
        ("c", narrow(rows(3), dtype), token_ids(3)),
        ("b", narrow(b, dtype), token_ids(2)),
    )
    (finding,) = found
    count = len(range(TOKENS)[block])
    first = range(TOKENS)[block][0]
    assert (finding.id, finding.check) == ("b", "cross-sample")
    assert finding.found == f"row {first} equals row {first} of a ({count} such rows)"


def test_rows_of_another_sample_at_another_place_are_found() -> None:
    a, b = rows(1), rows(2)
    b[2:5, -1] = a[6:9, -1]
    (finding,) = cross(("a", a, token_ids(1)), ("b", b, token_ids(2)))
    assert finding.found == "row 2 equals row 6 of a (3 such rows)"


def test_rows_repeated_inside_one_sample_are_found() -> None:
    a = rows(1)
    a[7, -1] = a[3, -1]
    (finding,) = cross(("a", a, token_ids(1)))
    assert finding.found == "row 7 equals row 3 of a (1 such rows)"


def test_equal_prefixes_may_have_equal_rows_and_nothing_after_them_may() -> None:
    ids_a, ids_b = token_ids(1), token_ids(1)
    ids_b[5:] += 1
    a, b = rows(1), rows(2)
    b[:5, -1] = a[:5, -1]
    assert cross(("a", a, ids_a), ("b", b, ids_b)) == []
    b[5, -1] = a[5, -1]
    (finding,) = cross(("a", a, ids_a), ("b", b, ids_b))
    assert finding.found == "row 5 equals row 5 of a (1 such rows)"


def test_identical_prompts_may_be_identical_samples() -> None:
    assert cross(("a", rows(1), token_ids(1)), ("b", rows(1), token_ids(1))) == []


def test_prefixes_of_one_repeated_token_may_share_a_row() -> None:
    one = rows(1)
    one[:, -1] = one[0, -1]
    sevens = np.full(TOKENS, 7)
    assert cross(("a", one, sevens), ("b", one[:4], sevens[:4])) == []
    # The run ends: from there on every prefix is its own.
    broken = sevens.copy()
    broken[5] = 8
    assert [f.id for f in cross(("a", one, broken))] == ["a"]
    assert [f.id for f in cross(("a", one, sevens), ("b", one, sevens + 1))] == ["b"]


def test_order_of_tokens_is_part_of_a_prefix() -> None:
    ids = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9])
    swapped = ids[[1, 0, *range(2, TOKENS)]]
    (finding,) = cross(("a", rows(1), ids), ("b", rows(1), swapped))
    assert finding.found.endswith(f"({TOKENS} such rows)")


def test_the_last_column_of_depth_one_or_more_is_compared() -> None:
    a, b = rows(1), rows(2)
    b[:, 1] = a[:, 1]
    samples = (("a", a, token_ids(1)), ("b", b, token_ids(2)))
    assert cross(*samples, depths=(1, 3, 6)) == []
    assert len(cross(*samples, depths=(1, 3, 0))) == 1
    assert cross(*samples, depths=(0, 0, 0)) == []


def test_rows_that_differ_in_single_bits_are_told_apart() -> None:
    """Every single bit of a row changes its fingerprint, also the highest ones."""
    base = rows(1, tokens=1)
    for dtype, unsigned in (("float32", np.uint32), ("bfloat16", np.uint16)):
        row = narrow(base, dtype).view(unsigned)
        bits = 8 * row.dtype.itemsize
        many = np.repeat(row, WIDTH * bits + 1, axis=0)
        for place in range(WIDTH * bits):
            many[place, -1, place // bits] ^= unsigned(1 << place % bits)
        ids = np.random.default_rng(0).integers(0, 1000, len(many))
        held = many.view(np.float32) if dtype == "float32" else many
        assert cross(("a", held, ids)) == []


def test_memory_stays_bounded_and_a_copied_sample_is_still_found() -> None:
    limit = 2000
    oracle = CrossSample(max_rows=limit)
    tracemalloc.start()
    try:
        base, _ = tracemalloc.get_traced_memory()
        for seed in range(300):
            oracle.add(str(seed), rows(seed, 100), token_ids(seed, 100), depths=DEPTHS)
        held = tracemalloc.get_traced_memory()[0] - base
    finally:
        tracemalloc.stop()
    assert oracle.level >= 3
    assert held < 40 * limit + 300 * 1500  # rows, and the last row and name of each sample
    assert oracle.findings() == []
    oracle.add("copy", rows(5, 100), token_ids(999, 100), depths=DEPTHS)
    (finding,) = oracle.findings()
    assert finding.id == "copy"
    assert "of 5 " in finding.found


def test_a_copy_of_a_short_sample_is_found_however_far_rows_are_thinned() -> None:
    oracle = CrossSample(max_rows=20)
    for seed in range(100):
        oracle.add(str(seed), rows(seed, 4), token_ids(seed, 4), depths=DEPTHS)
    for seed in range(30):
        oracle.add(f"copy{seed}", rows(seed, 4), token_ids(500 + seed, 4), depths=DEPTHS)
    assert oracle.level >= 4
    assert {finding.id for finding in oracle.findings()} == {f"copy{seed}" for seed in range(30)}


def test_thinning_keeps_the_promised_share_of_repeated_rows() -> None:
    oracle = CrossSample(max_rows=3000)
    a, b = rows(1, 8000), rows(2, 8000)
    b[1000:5000, -1] = a[1000:5000, -1]
    oracle.add("a", a, token_ids(1, 8000), depths=DEPTHS)
    oracle.add("b", b, token_ids(2, 8000), depths=DEPTHS)
    assert oracle.level == 3
    (finding,) = oracle.findings()
    share = int(finding.found.split("(")[1].split()[0]) / 4000
    assert 1 / 16 < share < 1 / 4


def best_rate(work: Callable[[], Any], size: int) -> float:
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return size / best / 1e6


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_oracles_are_fast_enough_to_keep_up_with_a_disk(dtype: str) -> None:
    """500 MB/s on one thread is the budget; a loaded machine gets a third of that here."""
    values = np.random.default_rng(0).normal(size=(256, 4, 7168)).astype(np.float32)
    hidden, ids = narrow(values, dtype), token_ids(tokens=256)
    depths = (1, 2, 3, 4)

    def run() -> None:
        assert not check_sample("s", hidden, ids, expected_ids=ids, depths=depths, dtype=dtype)

    assert best_rate(run, hidden.nbytes) > 170


@settings(deadline=None)
@given(
    place=st.tuples(st.integers(0, TOKENS - 1), st.integers(0, 2), st.integers(0, WIDTH - 1)),
    bits=st.integers(0, 2**16 - 1),
)
def test_finite_in_bfloat16_means_what_float32_says(place: tuple[int, int, int], bits: int) -> None:
    hidden = narrow(rows(), "bfloat16")
    hidden[place] = bits
    value = np.array([bits << 16], np.uint32).view(np.float32)[0]
    assert ("finite" in checks(check(hidden, "bfloat16"))) == (not np.isfinite(value))
