"""One call for who only wants the three numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness.estimate._build import estimate
from harness.estimate._engine import EngineSize
from harness.estimate._estimate import Estimate
from harness.estimate._model import Model, folder_model, profile_model
from harness.models import PROFILES, ModelFacts


def needs(
    model: ModelFacts | Model | Path | str,
    tensor_parallel_size: int,
    *,
    engine: EngineSize | None = None,
    output: int = 0,
    read_rate: float | None = None,
) -> Estimate:
    """Say what a model needs; ``device_bytes``, ``host_bytes`` and ``disk_bytes`` are the sums.

    Args:
        model: Facts of a checkpoint, its folder, or the name of a profile.
        tensor_parallel_size: Ranks, one a device; overrides ``engine``'s.
        engine: The other settings; by default those of an extraction of four depths.
        output: Bytes of the samples that will be written.
        read_rate: Bytes a second of the disk, if known.

    Raises:
        Refused: ``estimate.tensor-parallel``.
        UsageError: As :func:`harness.models.read`.
        NotComparable: ``models.unknown-family`` or ``estimate.unknown-weights``: no estimate
            can be made, which says nothing about whether the model fits.
    """
    size = replace(engine or EngineSize(), tensor_parallel_size=tensor_parallel_size)
    return estimate(_model(model), size, output=output, read_rate=read_rate)


def _model(model: ModelFacts | Model | Path | str) -> Model:
    if isinstance(model, Model):
        return model
    if isinstance(model, ModelFacts):
        return folder_model(model.path)
    if isinstance(model, str) and model in PROFILES:
        return profile_model(model)
    return folder_model(model)
