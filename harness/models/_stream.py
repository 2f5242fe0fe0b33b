"""Weights from nothing but a name and a seed, equal to the bit on every machine.

The raw integers come from SHAKE-256 (FIPS 202), keyed by profile, seed and tensor name. So a
tensor does not depend on the other tensors, on the order in which they are made, or on the
version of numpy. Floats are made from them by operations that IEEE 754 fixes exactly
(integer to float without rounding, one multiplication, one rounding to bfloat16's grid): no
logarithm, no cosine, nothing that a maths library may round its own way.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

_DOMAIN = "hidden-state-harness/weights/1"
_BITS = 24  # what a float32 mantissa holds exactly


def words(key: str, count: int) -> npt.NDArray[np.uint32]:
    """Return ``count`` uniform 32-bit words that belong to ``key``.

    Args:
        key: Any text; other keys give independent words.
        count: How many words.

    Returns:
        uint32 array of shape ``[count]``.
    """
    digest = hashlib.shake_256(f"{_DOMAIN}\0{key}".encode()).digest(4 * count)
    return np.frombuffer(digest, dtype="<u4").astype(np.uint32)


def uniform(key: str, shape: tuple[int, ...], half_width: float) -> npt.NDArray[np.float32]:
    """Return floats spread evenly over ``(-half_width, half_width)``; never exactly 0.

    Args:
        key: Names the stream, see :func:`words`.
        shape: Shape of the result.
        half_width: Largest magnitude; the standard deviation is ``half_width / sqrt(3)``.

    Returns:
        float32 array of the given shape.
    """
    count = 1
    for extent in shape:
        count *= extent
    mantissa = (words(key, count) >> np.uint32(32 - _BITS)).astype(np.int32)
    centred = (2 * mantissa + 1 - (1 << _BITS)).astype(np.float32)  # odd, below 2**24: exact
    step = np.float32(half_width / (1 << _BITS))
    return (centred * step).reshape(shape)


def permutation(key: str, count: int) -> npt.NDArray[np.int64]:
    """Return a permutation of ``range(count)`` that belongs to ``key``."""
    return np.argsort(words(key, count), kind="stable").astype(np.int64)


def to_bfloat16_bits(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round float32 to bfloat16, ties to even, and return its bits.

    Args:
        values: Finite float32 values of any shape.

    Returns:
        uint16 array of the same shape holding the bfloat16 bit patterns.
    """
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)


def from_bfloat16_bits(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Return the float32 values of bfloat16 bit patterns (exact)."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def on_bfloat16_grid(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Round float32 values to the nearest bfloat16 value, kept as float32."""
    return from_bfloat16_bits(to_bfloat16_bits(values))
