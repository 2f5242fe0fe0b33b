"""No engine is loaded onto GPUs that are not clean."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from harness.errors import NotComparable
from harness.extraction.needs import engine_needs
from harness.extraction.plan import EnginePlan
from harness.preflight import Need, Report
from harness.preflight.run import look, need_for


def require_clean(
    plan: EnginePlan,
    *,
    out: Path | None = None,
    output: int = 0,
    files: int = 0,
    skip: Collection[str] = (),
) -> Report | None:
    """Look at the box before an engine is loaded, from the very settings that it gets.

    Args:
        plan: How the engine will be loaded.
        out: Where its samples go.
        output: Their bytes.
        files: Their number.
        skip: Checks, or families of them, that are left out; ``all`` looks at nothing.

    Returns:
        The report of a clean box; None where the engine uses no GPU.

    Raises:
        Refused: ``preflight.dirty`` or ``preflight.unknown``.
        UsageError: ``preflight.unknown-check``.
    """
    if plan.seen.platform.device != "cuda":
        return None
    report = look(
        _need(plan, out=out, output=output, files=files),
        skip=skip,
        environment={**os.environ, **plan.recipe.env},
        python=plan.options.python,
    )
    report.require_clean()
    return report


def _need(plan: EnginePlan, *, out: Path | None, output: int, files: int) -> Need:
    try:
        made = engine_needs(plan, output=output)
    except NotComparable:
        # Another family of models: what it takes is not known, its share is.
        return Need(
            devices=plan.options.tensor_parallel_size,
            utilization=plan.options.gpu_memory_utilization,
            disk=out,
            disk_bytes=output,
            disk_files=files,
            cuda=plan.seen.cuda,
        )
    return need_for(made, disk=out, files=files, cuda=plan.seen.cuda)
