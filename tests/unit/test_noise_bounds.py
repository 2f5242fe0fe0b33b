"""The bounds of the GPU lane's tests of rows, held to the noise that was recorded on GPUs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.noise import EVEN, NARROW, UNEVEN, Noise, bound_of

EVIDENCE = Path(__file__).parents[2] / "fixtures" / "evidence"
TELLS = 0.5
LANES = [
    "2026-11-30-h200-lane.json",
    "2026-11-30-h200-lane-paced.json",
    "2026-11-30-h200x2-tp2-patched.json",
    "2026-11-30-h200x2-tp2-native.json",
]


def cases(name: str) -> Iterator[tuple[str, str, float, float]]:
    """Comparison, depth, sample and how far another prompt was, of each depth that tells."""
    found: dict[str, dict[str, float]] = json.loads((EVIDENCE / name).read_text())["noise"]
    another = found.pop("another prompt")
    for comparison, depths in found.items():
        for depth, sample in depths.items():
            if another[depth] > TELLS:
                yield comparison, depth, sample, another[depth]


@pytest.mark.parametrize("name", LANES)
def test_recorded_noise_is_within_its_depths_bound_and_another_prompt_is_not(name: str) -> None:
    seen = list(cases(name))
    assert len(seen) >= 28
    for comparison, depth, sample, another in seen:
        bound = bound_of(another, hidden=7168)
        assert Noise(int(depth), sample, 0.0).within(bound), (comparison, depth)
        assert another > 3 * bound.sample


def test_recorded_noise_of_a_narrow_model_is_within_its_bound() -> None:
    path = EVIDENCE / "2026-11-30-h200-tiny-noise.json"
    found: dict[str, Any] = json.loads(path.read_text())["noise_of_a_narrow_model"]
    another = found.pop("another prompt")
    bound = bound_of(1.4, hidden=128)
    for depths in found.values():
        assert all(Noise(int(d), *pair).within(bound) for d, pair in depths.items()), depths
    assert not any(Noise(int(d), *pair).within(bound) for d, pair in another.items())


def test_even_depths_of_a_wide_model_tell_one_wrong_row_of_512() -> None:
    one_wrong_row = 1.41 * (1 / 512) ** 0.5
    assert not Noise(2, one_wrong_row, 1.41).within(bound_of(1.41, hidden=7168))
    # Where the norm says less, the row itself does.
    assert not Noise(2, one_wrong_row, 1.41).within(bound_of(1.41, hidden=128))


def test_noise_that_is_no_number_is_within_no_bound() -> None:
    nan = float("nan")
    for bound in (EVEN, UNEVEN, NARROW):
        assert not Noise(1, nan, 0.0).within(bound)
        assert not Noise(1, 0.0, nan).within(bound)
