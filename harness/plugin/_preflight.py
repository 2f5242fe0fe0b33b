"""Preflight for a test session: what the session's engine will need, then the look."""

from __future__ import annotations

from typing import Final

from harness.estimate import EngineSize
from harness.preflight import Report
from harness.preflight.run import Asked, look, need_of
from harness.settings import Settings

NONE: Final = "none"
"""Value of the setting that leaves out no check."""

_MODEL_LEN: Final = 1024


def examine(settings: Settings, cuda: str | None) -> Report:
    """Look at the box for the engine that these settings describe.

    Args:
        settings: What the user set.
        cuda: CUDA version that the engine's wheels were built with; None: not known.

    Raises:
        HarnessError: As :func:`harness.preflight.run.need_of`, or ``preflight.unknown-check``.
    """
    usual = EngineSize()
    size = EngineSize(
        dtype=settings.dtype,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        max_model_len=settings.max_model_len or _MODEL_LEN,
        max_num_batched_tokens=settings.max_num_batched_tokens or usual.max_num_batched_tokens,
    )
    asked = Asked(
        model=settings.model,
        devices=settings.tensor_parallel_size,
        size=size,
        out=settings.out,
        python=settings.python,
        cuda=cuda,
    )
    return look(
        need_of(asked),
        skip=left_out(settings),
        python=settings.python,
    )


def left_out(settings: Settings) -> tuple[str, ...]:
    """Return the checks that the user turned off, as they were named."""
    names = [name.strip() for name in settings.preflight_skip.split(",")]
    return tuple(name for name in names if name not in ("", NONE))
