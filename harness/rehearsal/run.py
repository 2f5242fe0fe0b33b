"""Load a cut copy of a checkpoint as the whole one will be loaded, and do the job with it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from harness import models
from harness.capture.protocol import Captured, Request
from harness.capture.session import EngineSession
from harness.dataset.space import check_space, estimate_bytes
from harness.errors import CheckFailed, HarnessError, Refused, UsageError
from harness.extraction import EngineOptions, Observer, Silent, open_session
from harness.extraction.accept import Acceptance
from harness.extraction.clean import require_clean
from harness.extraction.plan import EnginePlan, plan_engine
from harness.host.supervision.policy import Supervision
from harness.layers import resolve
from harness.rehearsal.facts import Rehearsal

LAYERS = 4
"""Layers that are kept unless more depths are asked for."""

_STEPS = 4
_MAX_PROMPTS = 128
_WIDTH = {"float32": 4, "bfloat16": 2}


def rehearse(
    options: EngineOptions,
    *,
    disk: Path,
    log: Path,
    layers: int = LAYERS,
    longest_prompt: int | None = None,
    observer: Observer | None = None,
    supervision: Supervision | None = None,
    skip_checks: Collection[str] = (),
) -> Rehearsal:
    """Load a few layers of a checkpoint at full width, prove them, capture, write, clean up.

    Everything else is as the whole load will have it: interpreter, workers, dtype, kernels,
    number and order of columns, prompt length, token budget, share of memory, disk.

    Args:
        options: How the whole engine will be loaded.
        disk: A folder on the disk of the output; a folder in it is made and removed.
        log: File for what the engine prints; it stays only where the rehearsal fails.
        layers: Layers to keep; more are kept where more depths are asked for.
        longest_prompt: Tokens of the longest prompt, as for the whole engine.
        observer: Hears of the progress.
        supervision: What to do about an engine that cannot succeed.
        skip_checks: Checks of preflight that are left out.

    Returns:
        What was seen. Nothing of it is left on the disk, and no process runs.

    Raises:
        HarnessError: Whatever would stop the whole load too; ``where`` says that it was the
            rehearsal.
    """
    watch = observer or Silent()
    started = time.monotonic()
    with _told(), _scratch(disk) as folder:
        watch.stage("rehearsal", str(options.model))
        short = _short(options, folder / "model", layers)
        plan = plan_engine(short, longest_prompt=longest_prompt, spool=folder / "spool")
        prompts = _prompts(plan)
        size = _bytes(plan, prompts)
        check_space(folder, size, samples=len(prompts))
        require_clean(plan, out=folder, output=size, files=len(prompts), skip=skip_checks)
        watching = replace(
            supervision or Supervision(), on_progress=watch.loading, on_warning=watch.warning
        )
        with open_session(plan, log=log, supervision=watching) as session:
            session.load()
            watch.stage("canary")
            session.require_proof()
            watch.stage("capture", f"{len(prompts)} prompts")
            seconds, files = _capture(session, plan, prompts)
            found = _facts(options, plan, session, seconds, files)
    log.unlink(missing_ok=True)
    return replace(found, seconds=round(time.monotonic() - started, 1))


@contextmanager
def _scratch(disk: Path) -> Iterator[Path]:
    """Make a folder on a disk, and remove it again.

    Raises:
        Refused: ``rehearsal.cannot-write``.
    """
    try:
        folder = tempfile.TemporaryDirectory(prefix=".harness-rehearsal-", dir=disk)
    except OSError as error:
        raise Refused(
            "rehearsal.cannot-write",
            expected="a folder on the disk of the output, which can be written",
            found=f"{type(error).__name__}: {error.strerror}",
            where=str(disk),
            next="name another folder",
        ) from error
    with folder as name:
        yield Path(name)


def _short(options: EngineOptions, folder: Path, layers: int) -> EngineOptions:
    """Return the options with a cut model, and as many depths, in the same order."""
    whole = models.read(options.model)
    asked = resolve(options.layers, options.dialect, whole.num_layers, layout=options.layout)
    # Kept are the dense layers with one of experts, and a layer for each depth.
    dense = models.shape_of(options.model).first_k_dense_replace
    needed = len(asked.depths) + (whole.num_layers not in asked.depths)
    kept = max(layers, dense + 1, needed)
    if whole.num_layers <= kept:
        raise UsageError(
            "rehearsal.nothing-to-cut",
            expected=f"a model of more than {kept} layers",
            found=f"{whole.num_layers}",
            where=str(options.model),
            next="load it without a rehearsal: it is as small",
        )
    return replace(
        options,
        model=models.cut(options.model, folder, layers=kept),
        layers=",".join(map(str, short_depths(asked.depths, whole.num_layers, kept))),
        dialect="vllm",
        layout="raw",
    )


def short_depths(depths: tuple[int, ...], whole: int, kept: int) -> tuple[int, ...]:
    """Return depths of a cut model that stand in for a whole one's, in the same order.

    Depth L stands for depth L; the others take the layers before it, the deepest the last.
    """
    last = kept if whole in depths else kept - 1
    ranked = sorted(depths, reverse=True)
    return tuple(last - ranked.index(depth) for depth in depths)


def _prompts(plan: EnginePlan) -> list[list[int]]:
    """Random prompts, each second one as long as may be, for some scheduler steps."""
    spec = plan.session
    draw = np.random.default_rng(0)
    allowed = np.setdiff1d(np.arange(spec.vocab_size), sorted(spec.forbidden_ids))
    left, prompts = _STEPS * spec.token_budget, list[list[int]]()
    while left > 0 and len(prompts) < _MAX_PROMPTS:
        most = spec.max_prompt_tokens
        length = most if len(prompts) % 2 == 0 else int(draw.integers(1, most + 1))
        prompts.append(draw.choice(allowed, length).tolist())
        left -= length
    return prompts


def _bytes(plan: EnginePlan, prompts: list[list[int]]) -> int:
    assert plan.layers is not None
    return estimate_bytes(
        sum(map(len, prompts)),
        len(plan.layers.depths),
        plan.model.hidden_size,
        _WIDTH[plan.dtype],
        samples=len(prompts),
    )


def _capture(
    session: EngineSession, plan: EnginePlan, prompts: list[list[int]]
) -> tuple[float, list[Captured]]:
    """Capture, and hold each sample to what an extraction holds it to."""
    assert plan.layers is not None
    gate = Acceptance(
        columns=len(plan.layers.depths), hidden=plan.model.hidden_size, dtype=plan.dtype
    )
    requests = [
        Request(str(index), ids, check=index == 0 and len(ids) > 1)
        for index, ids in enumerate(prompts)
    ]
    files: list[Captured] = []
    started = time.monotonic()
    session.run(requests, files.append)
    seconds = time.monotonic() - started
    findings = [
        finding
        for file in files
        for finding in gate.check(file, f"prompt {file.key}", prompts[int(file.key)])
    ]
    if findings:
        raise CheckFailed(
            "rehearsal.sample-refused",
            expected="rows that belong to their token, layer and model",
            found="; ".join(map(str, findings)),
            where=f"{plan.session.name} capture",
            next="do not load the whole model; report the engine's version",
            findings=findings,
        )
    return seconds, files


def _facts(
    options: EngineOptions,
    plan: EnginePlan,
    session: EngineSession,
    seconds: float,
    files: list[Captured],
) -> Rehearsal:
    loaded, layers = session.loaded, plan.layers
    assert loaded is not None
    assert layers is not None
    worker = loaded.workers[0] if loaded.workers else {}
    tokens = sum(file.rows for file in files)
    block = worker.get("block_size")
    return Rehearsal(
        layers=plan.model.num_layers,
        of_layers=models.read(options.model).num_layers,
        depths=layers.depths,
        capture=plan.session.name,
        workers=len(loaded.workers),
        hidden_size=plan.model.hidden_size,
        dtype=plan.dtype,
        runner=str(worker.get("runner", "")),
        attention=str(worker.get("attention", "")),
        experts=tuple(map(str, worker.get("methods", ()))),
        block_size=block if isinstance(block, int) else None,
        seconds=0.0,
        load_seconds=round(sum(loaded.seconds.values()), 1),
        samples=len(files),
        tokens=tokens,
        tokens_per_s=round(tokens / seconds, 1) if seconds else 0.0,
        bytes=sum(file.bytes for file in files),
    )


@contextmanager
def _told() -> Iterator[None]:
    """Say of each failure that it was the rehearsal's."""
    try:
        yield
    except HarnessError as error:
        failure = error.failure
        if failure.where.startswith("rehearsal"):
            raise
        told = {"expected": failure.expected, "found": failure.found, "next": failure.next}
        where = f"rehearsal, before the load: {failure.where}"
        raise type(error)(failure.id, **told, where=where, **error.details) from error
