"""Who else is on the devices. Memory is the verdict; this finds what memory does not show yet."""

from __future__ import annotations

from collections.abc import Iterator

from harness.preflight._check import Check, Scene
from harness.preflight._owners import Owner, OwnerKind, remedy, sentence
from harness.preflight.facts import Device
from harness.preflight.probe import FLOOR
from harness.preflight.verdict import Finding, Verdict

_BUSY = frozenset({OwnerKind.OURS, OwnerKind.LIVE, OwnerKind.STUCK, OwnerKind.HIDDEN})


def _foreign(scene: Scene) -> Iterator[Finding]:
    for device in scene.devices:
        empty = device.memory is not None and device.memory.used <= FLOOR
        for owner in scene.owners[device.index]:
            if owner.mps or not owner.computes:
                continue
            if empty:
                yield _on_an_empty_device(scene, device, owner)
            elif owner.kind in (OwnerKind.ZOMBIE, OwnerKind.STUCK):
                text = sentence(owner, host=scene.processes.host)
                step = remedy(owner, device, host=scene.processes.host)
                yield Finding("processes.foreign", Verdict.DIRTY, text, _NOBODY, step, device.index)


_NOBODY = "no process that computes on a GPU that is used"


def _on_an_empty_device(scene: Scene, device: Device, owner: Owner) -> Finding:
    said = sentence(owner, host=scene.processes.host)
    if owner.kind in _BUSY:
        text = f"{said}; it holds nothing that can be measured: it is just starting, or ending"
        verdict, step = Verdict.UNKNOWN, "harness preflight again in some seconds"
    else:
        text, verdict, step = f"{said}; it holds nothing", Verdict.CLEAN, ""
    return Finding("processes.foreign", verdict, text, _NOBODY, step, device.index)


def _mps(scene: Scene) -> Iterator[Finding]:
    for device in scene.devices:
        for owner in scene.owners[device.index]:
            if owner.mps:
                text = sentence(owner, host=scene.processes.host)
                step = remedy(owner, device, host=scene.processes.host)
                yield Finding(
                    "processes.mps",
                    Verdict.DIRTY,
                    text,
                    "no client of the multi-process service (MPS) on a GPU that is used",
                    step,
                    device.index,
                )


CHECKS = (
    Check(
        "processes.foreign",
        "processes on a GPU that are seen before their memory is, or outlive it",
        "none that computes; a display server and entries of ended processes do not count",
        "a process that has just started holds next to nothing for a second, and then everything",
        _foreign,
    ),
    Check(
        "processes.mps",
        "CUDA's multi-process service",
        "no server and no client",
        "clients share the GPU's memory and faults, and a dead one can take the others with it",
        _mps,
    ),
)
