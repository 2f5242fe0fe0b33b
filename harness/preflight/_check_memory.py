"""Is the memory of every device free, at rest, and enough? Memory is the verdict."""

from __future__ import annotations

from collections.abc import Iterator

from harness.preflight._check import Check, Scene, size
from harness.preflight._owners import Owner, OwnerKind, remedy, sentence
from harness.preflight._visible import Target
from harness.preflight.facts import Memory
from harness.preflight.probe import FLOOR
from harness.preflight.verdict import Finding, Verdict

MOVES = 32 << 20
"""Bytes by which memory may change over the samples and still count as at rest."""

RESERVED_MOST = 2 << 30
"""Bytes that a driver may keep where it cannot say so: 0.5 to 1 GiB on large boards."""

CONTEXT = 512 << 20
"""Bytes that a worker's own CUDA context takes before vLLM measures what is free."""


def _used(scene: Scene) -> Iterator[Finding]:
    for target in scene.targets:
        memory, index = target.memory, target.device.index
        if memory is None:
            if target.device.problems:
                continue  # said by nvml.devices, with the reason
            text = "memory was not told"
            yield Finding("memory.used", Verdict.UNKNOWN, text, "a figure", "nvidia-smi", index)
        elif memory.used > FLOOR:
            yield _occupied(scene, target, memory)


def _occupied(scene: Scene, target: Target, memory: Memory) -> Finding:
    device = target.device
    known = scene.owners[device.index] or (Owner(OwnerKind.NONE),)
    owner, host = known[0], scene.processes.host
    expected = f"at most {size(FLOOR)} used"
    unsplit = memory.reserved is None and memory.used <= RESERVED_MOST
    if unsplit and owner.kind is OwnerKind.NONE:
        text = (
            f"{size(memory.used)} used, but this driver cannot split off the part that it keeps "
            "for itself, and nobody is listed"
        )
        step = "a driver of 510 or newer; or --skip memory.used, where nvidia-smi shows it idle"
        return Finding("memory.used", Verdict.UNKNOWN, text, expected, step, device.index)
    more = f" and {len(known) - 1} more" if len(known) > 1 else ""
    text = f"{size(memory.used)} used: {sentence(owner, host=host)}{more}"
    step = remedy(owner, device, host=host)
    return Finding("memory.used", Verdict.DIRTY, text, expected, step, device.index)


def _stable(scene: Scene) -> Iterator[Finding]:
    for target in scene.targets:
        samples = target.samples
        if len(samples) < 2 or max(samples) - min(samples) <= MOVES:
            continue
        index, seconds = target.device.index, target.device.seconds
        span = f"from {size(samples[0])} to {size(samples[-1])} in {seconds:.1f} s"
        if samples[-1] >= samples[0]:
            text, step = f"memory grows, {span}: somebody is loading", "harness preflight again"
            yield Finding("memory.stable", Verdict.DIRTY, text, _REST, step, index)
        elif samples[-1] > FLOOR:
            text, step = f"memory is being released, {span}", "harness preflight --wait 60"
            yield Finding("memory.stable", Verdict.DIRTY, text, _REST, step, index)
        elif len(set(samples[-2:])) > 1 and samples[-2] - samples[-1] > MOVES:
            text, step = f"memory has just been released, {span}", "harness preflight again"
            yield Finding("memory.stable", Verdict.UNKNOWN, text, _REST, step, index)
        else:
            yield Finding("memory.stable", Verdict.CLEAN, f"memory came back, {span}", device=index)


_REST = f"no change by more than {size(MOVES)} between samples"


def _need(scene: Scene) -> Iterator[Finding]:
    need = scene.need
    for target in scene.targets:
        memory, index = target.memory, target.device.index
        if memory is None:
            continue
        claim = need.claim(memory.usable)
        if need.share_bytes is not None and need.share_bytes > claim:
            text = (
                f"the model takes {size(need.share_bytes)} of each GPU, the share of "
                f"{need.utilization:g} is {size(claim)}"
            )
            step = "more GPUs (--tensor-parallel-size) or a larger --gpu-memory-utilization"
            yield Finding("memory.need", Verdict.DIRTY, text, "less than the share", step, index)
        wanted = max(claim + CONTEXT, need.device_bytes or 0)
        if memory.free < wanted:
            text = (
                f"{size(memory.free)} free of {size(memory.usable)}; the engine needs "
                f"{size(wanted)}: its share of {need.utilization:g} and what lies beside it"
            )
            lower = max(0.0, (memory.free - CONTEXT) / memory.usable)
            step = f"free the GPU, or --gpu-memory-utilization {int(lower * 100) / 100:g} or less"
            yield Finding("memory.need", Verdict.DIRTY, text, "enough free memory", step, index)


CHECKS = (
    Check(
        "memory.used",
        "memory in use, the driver's reserved part split off",
        f"at most {size(FLOOR)} on every GPU that is used",
        "an idle GPU shows 0 to about 20 MiB; a CUDA context takes 100 MiB or more. The "
        "process list only explains the figure: it may be empty or wrong where memory is held",
        _used,
    ),
    Check(
        "memory.stable",
        "memory at rest over the samples (3 in 0.2 s, up to 1.5 s while it moves)",
        f"no change by more than {size(MOVES)}",
        "a driver returns memory some seconds after a process ended: what falls will be free, "
        "what stays is leaked, what grows is somebody's load",
        _stable,
    ),
    Check(
        "memory.need",
        "free memory against the engine's claim",
        "utilization x usable memory, and 512 MiB for the worker's context, free on every GPU; "
        "the estimated size of the model within that claim",
        "vLLM refuses to start where less than its share is free, after minutes of imports",
        _need,
    ),
)
