"""What is recorded for one engine and one workload, beside what a session measures of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property

from harness import __version__
from harness.baseline import (
    Baseline,
    Finding,
    Found,
    Key,
    Stored,
    compare,
    find,
    judge,
    seen,
    series,
)
from harness.capture.protocol import Loaded
from harness.reclaim.memory import Meter

Tell = Callable[[str, object], None]


class EngineBaseline:
    """What is recorded for one engine and one workload, and what this session measures of it.

    Attributes:
        key: What figures of this engine belong to.
        findings: Everything that was compared so far.
    """

    def __init__(self, key: Key, stored: Sequence[Stored], *, tell: Tell, meter: Meter) -> None:
        self.key = key
        self.findings: list[Finding] = []
        self._stored, self._tell, self._meter = stored, tell, meter
        self._measured = Baseline(key, {}, source=f"pytest, harness {__version__}")

    @property
    def entry(self) -> Baseline | None:
        """What is recorded for this very key and may be a floor; None where there is nothing."""
        return self._found.entry

    @property
    def reason(self) -> str:
        """Why there is no entry; empty where there is one."""
        return self._found.reason

    @property
    def recorded(self) -> str:
        """Day and source of the entry, in words; empty without one."""
        return f"{self.entry.date}, {self.entry.source}" if self.entry else ""

    @property
    def measured(self) -> Baseline:
        """What was measured so far, in the form in which it would be recorded."""
        return replace(self._measured, date=datetime.now(UTC).date().isoformat())

    def judge(
        self,
        name: str,
        runs: Sequence[float],
        rerun: Callable[[], Sequence[float]] | None = None,
    ) -> Finding:
        """Hold runs of one figure against the recorded floor; see ``docs/baselines.md``.

        Args:
            name: The figure: ``*_ratio`` or ``*_tok_per_s``, of which more is better.
            runs: One figure a run; a baseline is recorded from 5 or more.
            rerun: Measures the same again; called only where the median is below the floor.

        Returns:
            The finding; ``finding.passed``, or ``finding.require()`` to stop a test.

        Raises:
            UsageError: ``baseline.unknown-figure``, ``baseline.no-runs``, ``baseline.bad-run``.
        """
        measured = series(name, runs)
        figures = {**self._measured.figures, name: measured}
        self._measured = replace(self._measured, figures=figures)
        recorded = self.entry.series(name) if self.entry else None
        return self._note(judge(name, runs, recorded, rerun=rerun, reason=self.reason))

    def backends(self, loaded: Loaded) -> tuple[Finding, ...]:
        """Hold what an engine computes with against what was recorded.

        Attention, kernels, block size and runner; nothing is compared without an entry.

        Args:
            loaded: What the engine said after its load.
        """
        facts = seen(loaded.workers)
        used = self._meter.read() or ()
        self._measured = replace(
            self._measured,
            seen=facts,
            load_seconds=loaded.seconds.get("load"),
            memory_bytes=tuple(device.used for device in used),
        )
        found = compare(self.entry.seen, facts) if self.entry else ()
        return tuple(map(self._note, found))

    def _note(self, finding: Finding) -> Finding:
        self.findings.append(finding)
        name = f"baseline.{self.key.capture}.{finding.name}"
        self._tell(name, json.dumps(finding.to_json()))
        return finding

    @cached_property
    def _found(self) -> Found:
        return find(self.key, self._stored)
