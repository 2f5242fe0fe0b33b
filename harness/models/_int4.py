"""The INT4 form of a weight: compressed-tensors ``pack-quantized``, symmetric, by group.

A weight ``[out, in]`` becomes three tensors:

* ``weight_packed`` int32 ``[out, in / 8]``: eight 4-bit codes a word along the input, the
  first in the lowest bits, each code being the signed value plus 8;
* ``weight_scale`` bfloat16 ``[out, in / group]``;
* ``weight_shape`` int32 ``[2]``: ``out, in``.

Source: ``compressed_tensors`` 0.12 to 0.17, ``pack_to_int32`` and the WNA16 MoE method of
vLLM 0.16 and 0.32; group size 32 is Kimi-K2.5's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.models._stream import from_bfloat16_bits, to_bfloat16_bits

GROUP_SIZE = 32
_CODES_PER_WORD = 8
_OFFSET = 8  # signed -8..7 is stored as 0..15


@dataclass(frozen=True)
class PackedWeight:
    """One INT4 weight as it lies in a checkpoint.

    Attributes:
        packed: int32 ``[out, in / 8]``.
        scale_bits: bfloat16 bit patterns, uint16 ``[out, in / group]``.
        shape: ``(out, in)``.
    """

    packed: npt.NDArray[np.int32]
    scale_bits: npt.NDArray[np.uint16]
    shape: tuple[int, int]


def quantise(weight: npt.NDArray[np.float32], group_size: int = GROUP_SIZE) -> PackedWeight:
    """Quantise a weight to 4 bits with one bfloat16 scale per group of inputs.

    Args:
        weight: float32 ``[out, in]``; ``in`` is divisible by ``group_size``.
        group_size: Inputs that share a scale; a multiple of 8.

    Returns:
        The packed weight. Codes use the full range -8..7.
    """
    out_features, in_features = weight.shape
    groups = weight.reshape(out_features, in_features // group_size, group_size)
    largest = np.abs(groups).max(axis=-1)
    scale_bits = to_bfloat16_bits(largest / np.float32(7.5))
    scale = from_bfloat16_bits(scale_bits)[..., None]
    codes = np.clip(np.rint(groups / scale), -8, 7).astype(np.int32) + _OFFSET
    nibbles = codes.reshape(out_features, in_features // _CODES_PER_WORD, _CODES_PER_WORD)
    shifts = (4 * np.arange(_CODES_PER_WORD)).astype(np.uint32)
    packed = np.bitwise_or.reduce(nibbles.astype(np.uint32) << shifts, axis=-1)
    return PackedWeight(packed.view(np.int32), scale_bits, (out_features, in_features))


def dequantise(weight: PackedWeight) -> npt.NDArray[np.float32]:
    """Return the float32 values that a packed weight stands for (exact: code times scale).

    Args:
        weight: The packed weight.

    Returns:
        float32 ``[out, in]``.
    """
    out_features, in_features = weight.shape
    shifts = (4 * np.arange(_CODES_PER_WORD)).astype(np.uint32)
    nibbles = (weight.packed.view(np.uint32)[..., None] >> shifts) & np.uint32(0xF)
    codes = nibbles.astype(np.int32).reshape(out_features, in_features) - _OFFSET
    scale = from_bfloat16_bits(weight.scale_bits)
    groups = codes.astype(np.float32).reshape(out_features, scale.shape[1], -1)
    return (groups * scale[..., None]).reshape(out_features, in_features)
