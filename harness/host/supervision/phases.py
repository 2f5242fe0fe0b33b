"""How far a load has come, read from the engine's log lines. Pure.

The rules hold for vLLM 0.16, 0.26 and 0.32, for CPU and CUDA; ``docs/supervisor.md`` lists
them. A phase begins with the line that ends the one before it, where the engine announces
only ends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from harness.host.supervision.loglines import LogLine


class Phase(StrEnum):
    """Phases of a load, in their order."""

    IMPORT = "import"
    DOWNLOAD = "download check"
    WEIGHTS = "weights"
    POST = "post-processing"
    PROFILE = "profiling"
    KV_CACHE = "KV cache"
    WARM_UP = "warm-up"
    READY = "ready"


ORDER: Final = tuple(Phase)


@dataclass(frozen=True)
class Rule:
    """One kind of line that says where a load is.

    Attributes:
        phase: The phase that such a line opens, or goes on with.
        pattern: Looked for at the start of the line's text.
    """

    phase: Phase
    pattern: re.Pattern[str]


def _rule(phase: Phase, pattern: str) -> Rule:
    return Rule(phase, re.compile(pattern))


RULES: Final = (
    _rule(Phase.IMPORT, r"non-default args: |Initializing a V1 LLM engine "),
    _rule(Phase.DOWNLOAD, r"Starting to load model "),
    _rule(Phase.DOWNLOAD, r"Filesystem type for checkpoints: |Time spent downloading weights "),
    _rule(Phase.DOWNLOAD, r"Prefetching checkpoint files"),
    _rule(
        Phase.WEIGHTS,
        r"(?:Loading|Multi-thread loading) [^:]*(?:shards|loader|Streamer): .*?"
        r"\| *(?P<done>\d+)/(?P<total>\d+) \[",
    ),
    _rule(Phase.POST, r"Loading weights took "),
    _rule(Phase.PROFILE, r"Model loading took "),
    _rule(Phase.PROFILE, r"Dynamo bytecode transform time|Compiling a graph for "),
    _rule(Phase.PROFILE, r"torch\.compile (?:takes|took) |Initial profiling/warmup run took "),
    _rule(Phase.KV_CACHE, r"Available KV cache memory: |Explicitly set \([^)]*\) GiB for KV "),
    _rule(Phase.KV_CACHE, r"(?:GPU |CPU )?KV cache size: "),
    _rule(Phase.WARM_UP, r"Warming up |Capturing CUDA graphs|DeepGEMM warmup"),
    _rule(Phase.WARM_UP, r"Graph capturing finished "),
    _rule(Phase.READY, r"init engine \(profile, create kv cache, warmup model\) took "),
)


@dataclass(frozen=True)
class Sighting:
    """What one line says of the load; ``done`` of ``total`` shards where it counts them."""

    phase: Phase
    done: int = 0
    total: int = 0


def sight(line: LogLine) -> Sighting | None:
    """Return what a line says of the load; None for the many that say nothing of it."""
    for rule in RULES:
        if found := rule.pattern.match(line.text):
            groups = found.groupdict()
            return Sighting(rule.phase, int(groups.get("done") or 0), int(groups.get("total") or 0))
    return None


@dataclass
class LoadTrack:
    """One load's way through the phases; it goes only forward.

    Every rank reports, and a drafter loads its own weights after the target's: the load is
    where the farthest line says.

    Attributes:
        begun: When the load began, on the monotonic clock.
        phase: Where it is.
        since: When that phase began.
        done: Shards that are loaded, in the phase ``weights``.
        total: Shards in all; 0 where no line has said it.
    """

    begun: float
    phase: Phase = Phase.IMPORT
    since: float = field(default=-1.0)
    done: int = 0
    total: int = 0
    _ended: dict[Phase, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.since < 0:
            self.since = self.begun

    def see(self, sighting: Sighting, now: float) -> bool:
        """Take in what a line says; whether it moved the load on."""
        step = ORDER.index(sighting.phase) - ORDER.index(self.phase)
        if step < 0:
            return False
        if step > 0:
            self._ended[self.phase] = now - self.since
            self.phase, self.since = sighting.phase, now
            self.done = self.total = 0
        counted = sighting.done > self.done or sighting.total > self.total
        self.done, self.total = max(self.done, sighting.done), max(self.total, sighting.total)
        return step > 0 or counted

    def finish(self, now: float) -> None:
        """The load is over."""
        self.see(Sighting(Phase.READY), now)

    @property
    def seconds(self) -> Mapping[str, float]:
        """Seconds of each phase that is over."""
        return MappingProxyType({phase.value: round(s, 3) for phase, s in self._ended.items()})

    @property
    def where(self) -> str:
        """The phase in words, such as ``weights 3 of 64``."""
        counted = f" {self.done} of {self.total}" if self.total else ""
        return f"{self.phase}{counted}"
