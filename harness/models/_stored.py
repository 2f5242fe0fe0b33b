"""What a checkpoint of a shape stores, without listing each expert and each like layer."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from harness.models._kimi import KimiShape
from harness.models._tensors import Kind, packed_shapes, text_tensors, vision_tensors

_WIDTH = {"F32": 4, "BF16": 2, "I32": 4}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as it lies in a checkpoint, with all that are like it.

    Attributes:
        name: Name without the wrapper's prefix; the first expert of the first layer with experts
            stands for all experts of all such layers.
        shape: Extents of one of them.
        dtype: safetensors dtype: ``F32``, ``BF16`` or ``I32``.
        each: How many there are.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    each: int = 1

    @property
    def bytes(self) -> int:
        """Size of all of them in the checkpoint."""
        return self.each * math.prod(self.shape) * _WIDTH[self.dtype]


@lru_cache(maxsize=64)
def stored_tensors(
    shape: KimiShape, *, wrapper: bool, int4: bool, dtype: str
) -> tuple[StoredTensor, ...]:
    """Return all tensors of a checkpoint; for Kimi-K2.5 as released they count 208,550.

    Args:
        shape: Sizes of the model.
        wrapper: Whether it has the vision tower and its projector.
        int4: Whether the routed experts are packed INT4.
        dtype: ``float32`` or ``bfloat16``, of what is not packed.
    """
    own = "F32" if dtype == "float32" else "BF16"
    dense = shape.first_k_dense_replace
    short = replace(shape, num_hidden_layers=min(shape.num_hidden_layers, dense + 1))
    found: list[StoredTensor] = []
    for spec in text_tensors(short, one_expert=True):
        like = spec.name.startswith(f"model.layers.{dense}.")
        each = shape.num_hidden_layers - dense if like else 1
        if spec.kind is not Kind.EXPERT:
            stored = "F32" if spec.kind is Kind.CORRECTION else own
            found.append(StoredTensor(spec.name, spec.shape, stored, each))
            continue
        packed = packed_shapes(spec) if int4 else {spec.name: (own, spec.shape)}
        found += [
            StoredTensor(name, extents, stored, each * shape.n_routed_experts)
            for name, (stored, extents) in packed.items()
        ]
    if wrapper:
        found += [StoredTensor(spec.name, spec.shape, own) for spec in vision_tensors(shape)]
    return tuple(found)
