"""How long a load is expected to take: as the last one of its kind did, or by its size."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from harness import state
from harness.errors import HarnessError
from harness.host.supervision.phases import ORDER, LoadTrack, Phase

FOLDER: Final = "loads"
"""Subfolder of the state folder with one record for each kind of load."""

BYTES_PER_S: Final = 450e6
"""Where nothing was measured: 540 GB in 20 minutes, the load of Kimi-K2.5 at TP=8."""

START_S: Final = 30.0
"""Imports and processes, whatever the size."""

_KEPT = 64


@dataclass(frozen=True)
class LoadKind:
    """What makes two loads alike.

    Attributes:
        facts: Names to values: the model's fingerprint, the engine's settings, its release.
        bytes: Size of the checkpoint; 0 where it is not known.
    """

    facts: Mapping[str, Any]
    bytes: int = 0

    @property
    def path(self) -> Path:
        """Where its record is kept."""
        text = json.dumps(dict(self.facts), sort_keys=True, default=str)
        name = hashlib.sha256(text.encode()).hexdigest()[:20]
        return state.state_folder() / FOLDER / f"{name}.json"


@dataclass(frozen=True)
class Expected:
    """How long a load should take.

    Attributes:
        seconds: All of it.
        why: Where the figure comes from.
        phases: Seconds of each phase, where they are known.
    """

    seconds: float
    why: str
    phases: Mapping[str, float] = field(default_factory=dict)

    def left(self, track: LoadTrack, now: float) -> float:
        """Seconds that the load still needs; never below 0."""
        if not self.phases:
            return max(0.0, self.seconds - (now - track.begun))
        here = ORDER.index(track.phase)
        later = sum(self.phases.get(phase.value, 0.0) for phase in ORDER[here + 1 :])
        spent = now - track.since
        whole = self.phases.get(track.phase.value, 0.0)
        if track.phase is Phase.WEIGHTS and track.done:
            whole = spent * track.total / track.done
        return max(0.0, whole - spent) + later


def expect(kind: LoadKind | None) -> Expected | None:
    """Return what is known of a kind of load; None where there is nothing to go by."""
    if kind is None:
        return None
    record = state.read_record(kind.path)
    with contextlib.suppress(KeyError, TypeError, ValueError):
        if record is not None:
            phases = {str(name): float(s) for name, s in record["phases"].items()}
            return Expected(float(record["seconds"]), "the last load of this kind", phases)
    if kind.bytes <= 0:
        return None
    seconds = START_S + kind.bytes / BYTES_PER_S
    return Expected(seconds, f"estimated from {kind.bytes / 1e9:,.1f} GB of weights")


def remember(kind: LoadKind, seconds: float, track: LoadTrack) -> None:
    """Keep how long a load took; a state folder that cannot be written costs only that."""
    record = {
        "seconds": round(seconds, 2),
        "phases": dict(track.seconds),
        "when": time.time(),
        "facts": {name: str(value) for name, value in kind.facts.items()},
    }
    with contextlib.suppress(HarnessError, OSError):
        state.write_record(kind.path, record)
        _forget_oldest(kind.path.parent)


def _forget_oldest(folder: Path) -> None:
    files = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
    for path in files[:-_KEPT]:
        state.drop_record(path)


def clock(seconds: float) -> str:
    """Write seconds as ``m:ss``, or ``h:mm:ss``."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
