"""Every check, and the walk: facts in, report out."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Final

from harness.errors import UsageError
from harness.preflight import (
    _check_devices,
    _check_driver,
    _check_health,
    _check_host,
    _check_memory,
    _check_nvml,
    _check_processes,
)
from harness.preflight._check import Check, Scene
from harness.preflight._host import look
from harness.preflight._owners import Processes
from harness.preflight._processes import SystemProcesses
from harness.preflight._visible import resolve
from harness.preflight.need import Need
from harness.preflight.probe import Probe, Reader, census
from harness.preflight.report import Report, report
from harness.preflight.verdict import Finding, Verdict

CHECKS: Final[tuple[Check, ...]] = (
    *_check_nvml.CHECKS,
    *_check_devices.CHECKS,
    *_check_memory.CHECKS,
    *_check_processes.CHECKS,
    *_check_health.CHECKS,
    *_check_driver.CHECKS,
    *_check_host.CHECKS,
)
"""In the order in which they are shown."""

ALL: Final = "all"
"""Stands for every check where some are left out."""


_BASIS: Final = "nvml.answers"
# Whoever leaves out that NVML must answer has not said that the GPUs are clean.
_NOTHING_KNOWN: Final = Finding(
    _BASIS,
    Verdict.UNKNOWN,
    "no GPU is known, so nothing can be said of them",
    next=f"leave out all checks ({ALL}), not only {_BASIS}",
)


def skipped(names: Collection[str]) -> frozenset[str]:
    """Return the ids of checks that a user turned off by id, by family, or with ``all``.

    Raises:
        UsageError: ``preflight.unknown-check``.
    """
    known = {check.id for check in CHECKS}
    if ALL in names:
        return frozenset(known)
    families = {check.family for check in CHECKS}
    if unknown := [name for name in names if name not in known | families]:
        near = [one for name in unknown for one in get_close_matches(name, known | families)]
        raise UsageError(
            "preflight.unknown-check",
            expected="the id of a check, or a family of them, such as "
            + ", ".join(dict.fromkeys(near or sorted(families))),
            found=", ".join(map(repr, unknown)),
            where="the checks to leave out",
            next="harness preflight --markdown lists them",
        )
    return frozenset(check.id for check in CHECKS if check.id in names or check.family in names)


def judge(scene: Scene, skip: Collection[str] = ()) -> tuple[Finding, ...]:
    """Return what every check that is not left out finds. Pure.

    Raises:
        UsageError: ``preflight.unknown-check``.
    """
    off = skipped(skip)
    found = [finding for check in CHECKS if check.id not in off for finding in check.judge(scene)]
    if _BASIS in off and len(off) < len(CHECKS) and scene.census.count is None:
        found.insert(0, _NOTHING_KNOWN)
    return tuple(found)


def preflight(
    need: Need | None = None,
    *,
    probe: Probe | None = None,
    skip: Collection[str] = (),
    environment: Mapping[str, str] | None = None,
    reader: Reader = census,
    processes: Processes | None = None,
) -> Report:
    """Look at this machine and say whether an engine can be started. Nothing is ended.

    Args:
        need: What the engine will need; by default its share of every visible GPU.
        probe: How NVML is asked.
        skip: Checks, or families of them, that are left out.
        environment: The engine's, for what it would see; by default this process's own.
        reader: Tells what NVML says.
        processes: Tells who may hold memory.

    Raises:
        UsageError: ``preflight.unknown-check``.
    """
    skipped(skip)
    started = time.monotonic()
    wanted = need or Need()
    own = os.environ if environment is None else environment
    found = reader(probe or Probe())
    scene = Scene(
        census=found,
        visible=resolve(found, own),
        processes=processes or SystemProcesses(),
        host=look(own, disk=wanted.disk),
        need=wanted,
    )
    return report(scene, judge(scene, skip), seconds=time.monotonic() - started)
