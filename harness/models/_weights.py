"""The values of a made model's tensors."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from harness.models._int4 import GROUP_SIZE
from harness.models._stream import on_bfloat16_grid, permutation, uniform
from harness.models._tensors import Kind, TensorSpec

_NORM_WIDTH = 0.25
_CORRECTION_STEP = 0.1


def values(spec: TensorSpec, key: str) -> npt.NDArray[np.float32]:
    """Return the float32 values of one tensor, each representable in bfloat16.

    So a float32 and a bfloat16 checkpoint of one seed hold the same model, and the float32
    reference of one is the reference of the other.

    Args:
        spec: The tensor.
        key: Profile and seed; with the tensor's name it decides the values.

    Returns:
        float32 array of ``spec.shape``.
    """
    stream = f"{key}\0{spec.name}"
    if spec.kind is Kind.CORRECTION:
        return _correction(spec, stream)
    if spec.kind is Kind.NORM:
        return on_bfloat16_grid(np.float32(1) + uniform(stream, spec.shape, _NORM_WIDTH))
    raw = uniform(stream, spec.shape, spec.spread * math.sqrt(3.0))
    if spec.kind is Kind.EXPERT:
        # Groups of unlike size: a scale applied to the wrong group or row is then far off.
        rows, columns = spec.shape
        size = uniform(f"{stream}\0groups", (rows, columns // GROUP_SIZE), 0.5) + np.float32(1)
        raw = (raw.reshape(rows, -1, GROUP_SIZE) * size[..., None]).reshape(rows, columns)
    return on_bfloat16_grid(raw)


def _correction(spec: TensorSpec, stream: str) -> npt.NDArray[np.float32]:
    # A ladder with one rung per expert, in an order of the layer's own. The router's logits
    # are wide, so most scores lie near 0 or 1 and the rungs decide between them: two experts
    # seldom tie, and a tie is what makes rounding choose another expert.
    (experts,) = spec.shape
    rungs = permutation(stream, experts).astype(np.float32)
    return (rungs - np.float32((experts - 1) / 2)) * np.float32(_CORRECTION_STEP)
