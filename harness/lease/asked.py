"""What a user asks of an engine, on its way to the keeper and into the record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from harness import models
from harness.capture.session import Deadlines
from harness.extraction.options import EngineOptions
from harness.extraction.plan import EnginePlan, plan_engine

DEFAULT_MODEL_LEN: Final = 1024
"""Longest request where nothing is set: tests are short, and a longer one costs memory."""

OPTIONS: Final = (
    "model",
    "layers",
    "dialect",
    "layout",
    "capture",
    "dtype",
    "tensor_parallel_size",
    "max_model_len",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "python",
)
"""What a lease is started with; a session that leaves one of these out takes the lease's."""

_PATHS = ("model", "python")


def to_json(options: EngineOptions) -> dict[str, Any]:
    """Return options as a JSON object, every path absolute."""
    body = {name: getattr(options, name) for name in OPTIONS}
    return {**body, **{name: str(body[name].absolute()) for name in _PATHS}}


def from_json(
    body: Mapping[str, Any], deadlines: Deadlines | None = None, *, skip_gate: bool = False
) -> EngineOptions:
    """Read what :func:`to_json` wrote; the rest is no part of what a lease is."""
    values = {name: body[name] for name in OPTIONS}
    values.update({name: Path(values[name]) for name in _PATHS})
    return EngineOptions(**values, deadlines=deadlines or Deadlines(), skip_gate=skip_gate)


def plan_for(options: EngineOptions, spool: Path) -> EnginePlan:
    """Decide how an engine for many sessions is loaded; the same in keeper and session.

    Raises:
        HarnessError: As :func:`harness.extraction.plan.plan_engine`.
    """
    asked, longest = bounded(options)
    return plan_engine(asked, longest_prompt=longest, spool=spool)


def bounded(options: EngineOptions) -> tuple[EngineOptions, int]:
    """Return options with the longest request settled, and tokens of the longest prompt.

    Raises:
        UsageError: As :func:`harness.models.read`.
    """
    length = options.max_model_len
    if length is None:
        length = min(DEFAULT_MODEL_LEN, models.read(options.model).max_position_embeddings)
    return replace(options, max_model_len=length), length - 1
