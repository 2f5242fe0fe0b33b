"""The INT4 form: codes, packing, scales, and the twin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from harness import models
from harness.models._int4 import dequantise, quantise
from harness.models._stream import from_bfloat16_bits, to_bfloat16_bits
from tests.unit.checkpoints import TINY, header, tensors


def _unpacked(packed: npt.NDArray[np.int32], scale: npt.NDArray[np.float32]) -> Any:
    """Unpack by the letter of the format, one code at a time."""
    rows, words = packed.shape
    out = np.zeros((rows, 8 * words))
    group = 8 * words // scale.shape[1]
    for row in range(rows):
        for column in range(8 * words):
            word = int(packed[row, column // 8]) & 0xFFFFFFFF
            code = (word >> (4 * (column % 8))) & 0xF
            out[row, column] = (code - 8) * float(scale[row, column // group])
    return out


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("int4") / "packed"
    return models.make(TINY, folder, architecture="plain", experts="int4", layers=3)


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("int4") / "twin"
    return models.make(TINY, folder, architecture="plain", experts="int4-twin", layers=3)


def test_packed_experts_unpack_to_the_twin(packed: Path, twin: Path) -> None:
    low, full = tensors(packed), tensors(twin)
    names = [name for name in full if ".mlp.experts." in name]
    assert len(names) == 2 * 8 * 3
    for name in names[::7]:
        expected = _unpacked(low[f"{name}_packed"], low[f"{name}_scale"])
        assert np.array_equal(expected, full[name])
        assert tuple(low[f"{name}_shape"]) == full[name].shape
    everything_else = [name for name in full if name not in names]
    assert all(np.array_equal(low[name], full[name]) for name in everything_else)


def test_only_routed_experts_are_packed_as_kimis_ignore_list_says(packed: Path) -> None:
    entries = header(packed)
    packed_names = {name for name, entry in entries.items() if entry["dtype"] == "I32"}
    assert packed_names
    assert all(".mlp.experts." in name for name in packed_names)
    assert not [n for n in entries if ".mlp.experts." in n and n.endswith(".weight")]


def test_bfloat16_twin_is_the_rounded_product(packed: Path, tmp_path: Path) -> None:
    half = models.make(
        TINY,
        tmp_path / "half",
        architecture="plain",
        experts="int4-twin",
        layers=3,
        dtype="bfloat16",
    )
    low, twin = tensors(packed), tensors(half)
    name = "model.layers.2.mlp.experts.5.down_proj.weight"
    exact = _unpacked(low[f"{name}_packed"], low[f"{name}_scale"]).astype(np.float32)
    assert np.array_equal(from_bfloat16_bits(to_bfloat16_bits(exact)), twin[name])


def test_twin_differs_from_the_dense_model_by_about_half_a_step(twin: Path, tmp_path: Path) -> None:
    dense = tensors(models.make(TINY, tmp_path / "dense", architecture="plain", layers=3))
    for name, array in tensors(twin).items():
        if ".mlp.experts." not in name:
            continue
        off = np.abs(array - dense[name]).reshape(array.shape[0], -1, 32).max(axis=-1)
        largest = np.abs(dense[name]).reshape(array.shape[0], -1, 32).max(axis=-1)
        assert (off <= 0.54 * largest / 7.5).all()
        assert off.max() > 0


def test_codes_use_their_whole_range() -> None:
    weight = np.linspace(-1, 1, 64 * 64, dtype=np.float32).reshape(64, 64)
    codes = quantise(weight).packed.view(np.uint32)
    seen = {int(word >> np.uint32(4 * i)) & 0xF for word in codes.ravel() for i in range(8)}
    assert seen == set(range(16))


def test_dequantised_values_quantise_to_themselves() -> None:
    rng = np.random.default_rng(0)
    once = quantise(rng.standard_normal((16, 64)).astype(np.float32))
    again = dequantise(once)
    assert np.array_equal(
        again, _unpacked(once.packed, from_bfloat16_bits(once.scale_bits)).astype(np.float32)
    )


def test_scales_of_neighbouring_groups_differ(packed: Path) -> None:
    # Else a loader that mixes groups or rows up would still give nearly the right weights.
    scale = tensors(packed)["model.layers.1.mlp.experts.0.gate_proj.weight_scale"]
    across = np.abs(np.diff(scale, axis=1)) / scale[:, :-1]
    assert np.median(across) > 0.2
    down = np.abs(np.diff(scale, axis=0)) / scale[:-1]
    assert np.median(down) > 0.2


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (1.0, 0x3F80),
        (-2.0, 0xC000),
        (1.00390625, 0x3F80),  # halfway, to even: down
        (1.01171875, 0x3F82),  # halfway, to even: up
        (1.0039064, 0x3F81),
    ],
)
def test_rounding_to_bfloat16_is_to_nearest_even(value: float, bits: int) -> None:
    assert int(to_bfloat16_bits(np.array([value], dtype=np.float32))[0]) == bits
