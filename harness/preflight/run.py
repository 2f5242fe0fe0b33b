"""From what a user asks for to a report: what the engine will need, then the look."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness import engine_facts
from harness.errors import NotComparable, UsageError
from harness.estimate import EngineSize, Estimate, needs, profile_model
from harness.preflight import probe as _probe
from harness.preflight.check import preflight, skipped
from harness.preflight.need import Need
from harness.preflight.probe import Probe, Reader
from harness.preflight.report import Report


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is going to be started.

    Attributes:
        profile: A model by name, instead of ``model``.
        model: Checkpoint folder.
        devices: GPUs; None: one for a model, every visible one without.
        size: Settings of the engine; its ranks are ``devices``.
        out: Output folder.
        python: Interpreter that has vLLM.
        cuda: CUDA version that its wheels were built with; None asks the interpreter.
    """

    profile: str | None = None
    model: Path | None = None
    devices: int | None = None
    size: EngineSize = field(default_factory=EngineSize)
    out: Path | None = None
    python: Path = field(default_factory=lambda: Path(sys.executable))
    cuda: str | None = None


def need_of(asked: Asked) -> Need:
    """Return what an engine will need, as far as it can be known.

    Raises:
        UsageError: ``preflight.two-models``, ``models.unknown-profile``,
            ``engine.no-interpreter``, or as the checkpoint's reader.
        NotComparable: ``engine.facts-failed``: what ``python`` names is no Python that works.
        Refused: ``estimate.tensor-parallel``.
    """
    if asked.profile is not None and asked.model is not None:
        raise UsageError(
            "preflight.two-models",
            expected="--profile or --model",
            found="both",
            where="the command line",
            next="leave one out",
        )
    named = asked.model if asked.profile is None else profile_model(asked.profile)
    cuda = cuda_of(asked.python) if asked.cuda is None else asked.cuda
    if named is not None:
        devices = asked.devices or 1
        try:
            made = needs(named, devices, engine=asked.size)
        except NotComparable:
            pass  # another family of models: its share is all that can be asked for
        else:
            return need_for(made, disk=asked.out, cuda=cuda)
        return Need(devices=devices, utilization=_share(asked), disk=asked.out, cuda=cuda)
    return Need(devices=asked.devices, utilization=_share(asked), disk=asked.out, cuda=cuda)


def need_for(made: Estimate, *, disk: Path | None = None, files: int = 0, cuda: str = "") -> Need:
    """Return what an estimated engine needs.

    Args:
        made: The estimate.
        disk: Where its samples go.
        files: How many files they are.
        cuda: CUDA version of the engine's wheels.
    """
    return Need(
        devices=made.engine.tensor_parallel_size,
        utilization=made.engine.gpu_memory_utilization,
        share_bytes=sum(term.bytes for term in made.inside) + made.least_cache,
        device_bytes=made.device_bytes,
        host_bytes=made.host_bytes,
        page_cache=made.page_cache.bytes,
        disk=disk,
        disk_bytes=made.disk_bytes,
        disk_files=files,
        cuda=cuda,
    )


def look(
    need: Need,
    *,
    probe: Probe | None = None,
    skip: Collection[str] = (),
    environment: Mapping[str, str] | None = None,
    python: Path | None = None,
    reader: Reader | None = None,
) -> Report:
    """Look at the box, with the engine's own NVML binding where ours has none.

    Args:
        need: What the engine will need.
        probe: How NVML is asked.
        skip: Checks that are left out.
        environment: The engine's; by default this process's own.
        python: Interpreter that has vLLM, and so NVML's binding, most likely.
        reader: Tells what NVML says; by default a child.

    Raises:
        UsageError: ``preflight.unknown-check``.
    """
    skipped(skip)  # before anything that takes time
    how = probe or Probe()
    ask = reader or _probe.census
    if python is not None and python != how.python:
        ask = _probe.with_other(ask, python)
    own = os.environ if environment is None else environment
    return preflight(need, probe=how, skip=skip, environment=own, reader=ask)


def cuda_of(python: Path) -> str:
    """Return the CUDA that an interpreter's torch was built with.

    Empty where it has none, or where it takes too long to say: a box that is busy is not unfit.

    Raises:
        UsageError: ``engine.no-interpreter``.
        NotComparable: ``engine.facts-failed``.
    """
    try:
        return engine_facts.inspect(python).cuda
    except NotComparable as error:
        if error.failure.id != "engine.facts-timeout":
            raise
        return ""


def _share(asked: Asked) -> float:
    return asked.size.gpu_memory_utilization
