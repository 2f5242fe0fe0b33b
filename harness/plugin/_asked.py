"""What the user's settings ask of an engine: one to load, or a lease to attach to."""

from __future__ import annotations

from pathlib import Path

from harness import models
from harness.capture.session import Deadlines
from harness.extraction import EngineOptions
from harness.extraction.options import capture_choice
from harness.extraction.plan import EnginePlan
from harness.layers import usual
from harness.lease.asked import plan_for
from harness.lease.attach import Attached, attach
from harness.plugin._attach import given
from harness.settings import DEFAULT, LEASE, Settings


def engine_plan(settings: Settings, model: Path, folder: Path) -> EnginePlan:
    """Decide how the session's engine is loaded.

    Args:
        settings: What the user set.
        model: The checkpoint.
        folder: For the spool.

    Raises:
        HarnessError: As :func:`harness.extraction.plan.plan_engine`, or
            ``extract.unknown-capture``.
    """
    return plan_for(engine_options(settings, model), folder / "spool")


def engine_options(settings: Settings, model: Path) -> EngineOptions:
    """Return what the user asks of an engine.

    Raises:
        UsageError: ``extract.unknown-capture``; the model cannot be read.
    """
    unnamed = settings.source("layers") == DEFAULT and settings.model is not None
    return EngineOptions(
        model=model,
        layers=usual(models.read(model).num_layers) if unnamed else settings.layers,
        dialect=settings.dialect,
        layout=settings.layout,
        capture=capture_choice(settings.capture, "--hs-capture"),
        dtype=settings.dtype,
        tensor_parallel_size=settings.tensor_parallel_size,
        max_model_len=settings.max_model_len,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        python=settings.python,
        skip_gate=settings.skip_gate,
        deadlines=_deadlines(settings),
    )


def attach_engine(settings: Settings) -> Attached:
    """Find the leased engine that the user named and hold it to what the session asks for.

    Raises:
        HarnessError: As :func:`harness.lease.attach.attach`.
    """
    if settings.source("capture") != LEASE:
        capture_choice(settings.capture, "--hs-capture")
    assert settings.attach is not None
    return attach(settings.attach, given(settings), deadlines=_deadlines(settings))


def _deadlines(settings: Settings) -> Deadlines:
    return Deadlines(
        start=settings.start_deadline,
        load=settings.load_deadline,
        batch=settings.batch_deadline,
        files=settings.files_deadline,
        shutdown=settings.shutdown_deadline,
        first_batch=settings.first_batch_deadline,
    )
