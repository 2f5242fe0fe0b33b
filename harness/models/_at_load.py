"""The plan of weights that are made at load: names, shapes and spreads, no values.

Half a terabyte of made weights would teach nothing that a seed does not. A folder with this
plan is loaded by ``harness.inside.seeded``, which makes each tensor on the device it goes to and
hands it to the model's own loader, as if it had been read from a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from harness.models._kimi import KimiShape
from harness.models._tensors import Kind, TensorSpec, packed_shapes, text_tensors

WEIGHTS_PLAN = "harness-weights.json"
"""Name of the plan in a model folder."""

_FIRST_EXPERT = ".mlp.experts.0."


def weights_plan(
    shape: KimiShape, *, key: str, prefix: str, experts: str, dtype: str
) -> dict[str, Any]:
    """Return the plan of a model's text weights; the vision tower's are never read.

    Args:
        shape: Sizes of the model.
        key: Profile and seed; with a tensor's name it decides the values.
        prefix: Put before each name (the wrapper's).
        experts: ``dense`` or ``int4``.
        dtype: ``float32`` or ``bfloat16``.

    Returns:
        ``key`` and ``tensors``: name (``{}`` stands for the expert), shape, kind, spread, dtype
        and, for experts, how many there are (``each``).
    """
    tensors = []
    for spec in text_tensors(shape):
        if spec.kind is not Kind.EXPERT:
            tensors += list(_entries(spec, prefix, experts, dtype))
        elif _FIRST_EXPERT in spec.name:
            name = spec.name.replace(_FIRST_EXPERT, ".mlp.experts.{}.")
            one = replace(spec, name=name)
            for entry in _entries(one, prefix, experts, dtype):
                tensors.append({**entry, "each": shape.n_routed_experts})
    return {"key": key, "tensors": tensors}


def _entries(spec: TensorSpec, prefix: str, experts: str, dtype: str) -> Iterator[dict[str, Any]]:
    name, own = prefix + spec.name, "F32" if dtype == "float32" else "BF16"
    if spec.kind is Kind.EXPERT and experts != "dense":
        for packed, (stored, extent) in packed_shapes(spec).items():
            kind = packed.rsplit("_", 1)[1]  # packed, scale, shape
            yield _entry(prefix + packed, extent, kind, spec.spread, stored) | (
                {"of": list(spec.shape)} if kind == "shape" else {}
            )
        return
    kind = "matrix" if spec.kind is Kind.EXPERT else spec.kind.value
    yield _entry(name, spec.shape, kind, spec.spread, "F32" if kind == "correction" else own)


def _entry(
    name: str, shape: tuple[int, ...], kind: str, spread: float, dtype: str
) -> dict[str, Any]:
    return {"name": name, "shape": list(shape), "kind": kind, "spread": spread, "dtype": dtype}
