"""From what a user asks for to a report: what the engine will need, then the look."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

from harness import engine_facts
from harness.errors import HarnessError, UsageError
from harness.preflight.check import preflight, skipped
from harness.preflight.need import Need
from harness.preflight.probe import Probe, Reader, census
from harness.preflight.report import Report


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is going to be started.

    Attributes:
        profile: A model by name, instead of ``model``.
        model: Checkpoint folder.
        devices: GPUs; None: every visible one.
        utilization: Share of each one's memory.
        out: Output folder.
        out_bytes: What will be written to it, where that is known.
        out_files: Files that will be made in it.
        python: Interpreter that has vLLM.
        skip: Checks that are left out.
    """

    profile: str | None = None
    model: Path | None = None
    devices: int | None = None
    utilization: float = 0.85
    out: Path | None = None
    out_bytes: int = 0
    out_files: int = 0
    python: Path = field(default_factory=lambda: Path(sys.executable))
    skip: tuple[str, ...] = ()


def need_of(asked: Asked) -> Need:
    """Return what an engine will need, as far as it can be known.

    Raises:
        UsageError: ``preflight.two-models``, or as the checkpoint's reader.
    """
    if asked.profile is not None and asked.model is not None:
        raise UsageError(
            "preflight.two-models",
            expected="--profile or --model",
            found="both",
            where="the command line",
            next="leave one out",
        )
    return Need(
        devices=asked.devices,
        utilization=asked.utilization,
        disk=asked.out,
        disk_bytes=asked.out_bytes,
        disk_files=asked.out_files,
        cuda=_cuda_of(asked.python),
    )


def look(asked: Asked, *, probe: Probe | None = None, reader: Reader = census) -> Report:
    """Look at the box for an engine.

    Raises:
        UsageError: As :func:`need_of`, or ``preflight.unknown-check``.
    """
    skipped(asked.skip)  # before anything that takes time
    how = probe or Probe()
    return preflight(need_of(asked), probe=how, skip=asked.skip, reader=reader)


def _cuda_of(python: Path) -> str:
    """Return the CUDA that an interpreter's torch was built with; empty where it has none."""
    try:
        return engine_facts.inspect(python).cuda
    except HarnessError:
        return ""  # whoever starts the engine says so
