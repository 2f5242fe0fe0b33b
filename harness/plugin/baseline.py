"""What the ``baseline`` fixture offers: recorded speeds for an engine, and the judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from harness.baseline import ABSENT, Baseline, Finding, Key, Stored, model_name
from harness.capture.protocol import Loaded
from harness.extraction.plan import EnginePlan
from harness.plugin._baselines import BaselineKeeper
from harness.plugin._gpus import GpuCount
from harness.plugin._own_baseline import EngineBaseline, Tell
from harness.reclaim.memory import Meter

__all__ = ["EngineBaseline", "SessionBaseline", "key_of"]


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
