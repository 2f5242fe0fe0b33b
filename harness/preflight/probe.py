"""Ask NVML from outside: a child asks, we wait a bounded time and read what it printed.

Nothing here imports NVML's binding. Whatever the child does (hangs, crashes, prints nonsense),
a :class:`~harness.preflight.facts.Census` comes back in time, with what is known.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

from harness.preflight import _events
from harness.preflight.facts import BEYOND, Census

CHILD: Final = Path(__file__).with_name("_nvml_child.py")
FLOOR: Final = 64 << 20
"""Bytes used below which a device counts as empty: an idle one shows 0 to about 20 MiB, and the
smallest CUDA contexts take about 100 MiB."""

_REPORTED_LATE = 0.4
_CRASHES = 3


@dataclass(frozen=True, kw_only=True)
class Probe:
    """How NVML is asked.

    Attributes:
        python: Interpreter of the child; needs nvidia-ml-py and nothing of ours.
        env: Its environment; by default this process's own.
        deadline: Seconds for everything, ``wait`` not counted. A probe that has not ended by
            then is cut off.
        samples: Samples of each device's memory that must agree.
        interval: Seconds between two.
        settle: Seconds for which memory that moves is watched at most.
        wait: Seconds to wait for memory to fall below ``floor``; 0 takes it as it is.
        floor: Bytes.
        brief: Only names and ids.
        cuda: Also call ``cuInit``.
    """

    python: Path = field(default_factory=lambda: Path(sys.executable))
    env: Mapping[str, str] | None = None
    deadline: float = 4.5
    samples: int = 3
    interval: float = 0.1
    settle: float = 1.5
    wait: float = 0.0
    floor: int = FLOOR
    brief: bool = False
    cuda: bool = True


class Reader(Protocol):
    """Whoever can tell what NVML says; tests put their own in place."""

    def __call__(self, probe: Probe) -> Census:
        """Return what there is to know; never raises for what NVML does."""


def census(probe: Probe | None = None) -> Census:
    """Ask NVML in a child.

    A device that crashes the child is left out of a second run, and named.

    Returns:
        The facts, within ``deadline + wait`` seconds.
    """
    how = probe or Probe()
    started = time.monotonic()
    until = started + how.deadline + how.wait
    events: list[dict[str, Any]] = []
    lost: dict[int, str] = {}
    careful = False
    for _ in range(1 + _CRASHES):
        run = _Run(how, until, skip=list(lost), careful=careful)
        heard, broken = run.hear()
        events += heard
        if not run.crashed:
            break
        open_devices = _begun(heard)
        if careful and open_devices:
            lost[open_devices[-1]] = _events.crashed(broken)
        elif careful or not open_devices:
            break  # not the fault of one device
        careful = True
    found = _events.build(events, broken=broken, lost=lost)
    return replace(found, seconds=time.monotonic() - started)


def used_bytes(probe: Probe | None = None, *, reader: Reader = census) -> dict[int, int]:
    """Return the used bytes of every device, by NVML's index, the reserved part left out.

    For comparing before and after: one sample, no health. Devices that do not answer are not
    in it; it is empty where NVML cannot be asked.
    """
    how = replace(probe or Probe(), samples=1, cuda=False)
    return {d.index: d.memory.used for d in reader(how).devices if d.memory is not None}


class _Run:
    """One run of the child.

    Attributes:
        crashed: It ended by a signal that was not ours.
    """

    def __init__(self, probe: Probe, until: float, *, skip: Iterable[int], careful: bool) -> None:
        self._probe, self._until = probe, until
        self.crashed = False
        self._options = {
            "samples": probe.samples,
            "interval": probe.interval,
            "settle": probe.settle,
            "wait": probe.wait,
            "floor": probe.floor,
            "brief": probe.brief,
            "cuda": probe.cuda,
            "skip": list(skip),
            "careful": careful,
            "parent": os.getpid(),
            # It gives up on a device before we give up on it, so that the others are told.
            "limit": max(0.1, until - time.monotonic() - max(0.5, 0.25 * probe.deadline)),
            "alive": max(0.1, until - time.monotonic()) + 1.0,
        }

    def hear(self) -> tuple[list[dict[str, Any]], str]:
        """Return what it printed, and how it ended too early (empty: it did not)."""
        command = [str(self._probe.python), "-P", str(CHILD), json.dumps(self._options)]
        try:
            child = subprocess.Popen(
                command,
                env=None if self._probe.env is None else dict(self._probe.env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            text = f"{self._probe.python}: {error.strerror or error}"
            return [{"event": "failed", "query": "start", "code": BEYOND, "text": text}], ""
        try:
            printed, in_time = self._read(child)
        finally:
            _end(child)
        events = list(_lines(printed))
        if not in_time:
            return events, f"no answer within {self._probe.deadline + self._probe.wait:g} s"
        if events and events[-1]["event"] in ("end", "failed"):
            return events, ""
        code = child.returncode
        self.crashed = code is not None and code < 0
        if self.crashed:
            return events, f"the probe was ended by {_signal_name(-code)}"
        return events, f"the probe ended with exit code {code} and no result"

    def _read(self, child: subprocess.Popen[bytes]) -> tuple[bytes, bool]:
        assert child.stdout is not None
        text = b""
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            while (left := self._until - time.monotonic()) > 0:
                if not selector.select(left):
                    continue
                chunk = os.read(child.stdout.fileno(), 1 << 16)
                if not chunk:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.wait(_REPORTED_LATE)
                    return text, True
                text += chunk
        return text, False


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the child, without waiting for one that is stuck in the driver."""
    if child.poll() is None:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_REPORTED_LATE)
    if child.stdout is not None:
        child.stdout.close()


def _lines(text: bytes) -> Iterable[dict[str, Any]]:
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # cut off in the middle, or not ours
        if isinstance(event, dict) and "event" in event:
            yield event


def _begun(events: Iterable[Mapping[str, Any]]) -> list[int]:
    """Return the devices that were begun and not done."""
    begun: list[int] = []
    for event in events:
        if event["event"] == "at":
            begun.append(event["index"])
        elif event["event"] == "done":
            begun.remove(event["index"])
    return begun


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def with_other(reader: Reader, python: Path) -> Reader:
    """Return a reader that asks another interpreter where the first one has no binding."""

    def read(probe: Probe) -> Census:
        found = reader(probe)
        if found.failure is None or found.failure.query != "binding":
            return found
        again = reader(replace(probe, python=python))
        # Where that has none either, the first one is the user's to mend.
        return found if again.failure is not None and again.failure.code == BEYOND else again

    return read
