"""What the ``baseline`` fixture offers: recorded speeds for an engine, and the judge."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from harness import __version__
from harness.baseline import (
    ABSENT,
    Baseline,
    Finding,
    Found,
    Key,
    Stored,
    compare,
    find,
    judge,
    model_name,
    seen,
    series,
)
from harness.capture.protocol import Loaded
from harness.extraction.plan import EnginePlan
from harness.plugin._baselines import BaselineKeeper
from harness.plugin._gpus import GpuCount
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


class SessionBaseline:
    """The ``baseline`` fixture: made for the session's engine, or for one of a test's own.

    Everything that :class:`EngineBaseline` has is here too, for the session's engine with no
    workload named.
    """

    def __init__(
        self,
        keeper: BaselineKeeper,
        plan: Callable[[], EnginePlan],
        gpus: Callable[[], GpuCount],
        stored: Sequence[Stored],
        *,
        tell: Tell,
        meter: Meter,
    ) -> None:
        self._keeper, self._plan, self._gpus, self._stored = keeper, plan, gpus, stored
        self._tell, self._meter = tell, meter

    def of(self, plan: EnginePlan, workload: str) -> EngineBaseline:
        """Return the baseline of an engine and a workload; the same one for the same key.

        Args:
            plan: How the engine is, or will be, loaded.
            workload: Prompts, depths and where files go, in words; part of the key.
        """
        key = key_of(plan, self._gpus(), workload)
        made = EngineBaseline(key, self._stored, tell=self._tell, meter=self._meter)
        return self._keeper.keep(made)

    @property
    def key(self) -> Key:
        """Key of the session's engine."""
        return self._own.key

    @property
    def entry(self) -> Baseline | None:
        """What is recorded for it; None where nothing is."""
        return self._own.entry

    @property
    def reason(self) -> str:
        """Why there is no entry."""
        return self._own.reason

    def judge(
        self,
        name: str,
        runs: Sequence[float],
        rerun: Callable[[], Sequence[float]] | None = None,
    ) -> Finding:
        """Hold runs against the recorded floor; see :meth:`EngineBaseline.judge`."""
        return self._own.judge(name, runs, rerun)

    def backends(self, loaded: Loaded) -> tuple[Finding, ...]:
        """Hold an engine's backends against the recorded ones; see the other's."""
        return self._own.backends(loaded)

    @cached_property
    def _own(self) -> EngineBaseline:
        return self.of(self._plan(), "any")


def key_of(plan: EnginePlan, gpus: GpuCount, workload: str) -> Key:
    """Return the key of an engine.

    Args:
        plan: How it is loaded.
        gpus: The GPUs that this process may use.
        workload: See :class:`harness.baseline.Key`.
    """
    versions: Mapping[str, Any] = plan.seen.engine.versions
    release = plan.seen.engine.vllm
    return Key(
        gpu=" and ".join(sorted(set(gpus.names))) or None,
        gpus=gpus.usable,
        tensor_parallel_size=plan.options.tensor_parallel_size,
        vllm=None if release is None else str(release),
        torch=versions.get("torch"),
        speculators=versions.get("speculators", ABSENT),
        model=model_name(plan.options.model),
        capture=plan.session.name,
        dtype=plan.dtype,
        token_budget=plan.session.token_budget,
        workload=workload,
    )
