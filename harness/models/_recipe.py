"""What decides the bytes of a made model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

_FORMAT = 2  # raise when the same options give other bytes


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the bytes of a made model.

    Attributes:
        profile: Name in :data:`harness.models.PROFILES`.
        seed: Chooses the weights.
        architecture: ``wrapper`` (KimiK25ForConditionalGeneration) or ``plain``
            (DeepseekV3ForCausalLM with the same text weights).
        experts: ``dense``, ``int4`` (packed routed experts) or ``int4-twin`` (dense weights that
            hold exactly what the packed ones stand for).
        dtype: ``float32`` or ``bfloat16``.
        layers: Number of decoder layers.
        format: Version of the maker.
        weights: ``files``, or ``load`` for a plan from which they are made at load.
    """

    profile: str
    seed: int
    architecture: str
    experts: str
    dtype: str
    layers: int
    format: int = _FORMAT
    weights: str = "files"


def record_of(recipe: Recipe) -> dict[str, Any]:
    """The recipe as files keep it; what is as it always was is left out."""
    record = asdict(recipe)
    if recipe.weights == "files":
        del record["weights"]
    return record
