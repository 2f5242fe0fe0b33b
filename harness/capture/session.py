"""A capture whose engine lives in a host process."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from harness.capture.protocol import BatchTimes, Captured, Loaded, Request
from harness.errors import CheckFailed, EngineFailed, Refused
from harness.layers import LayerPlan
from harness.oracles.canary import canary_prompts, judge
from harness.oracles.finding import Finding


class HostLike(Protocol):
    """The part of :class:`harness.host.Host` that a session uses."""

    def start(self, deadline_s: float = ...) -> Any:
        """Start the child and wait for its hello."""

    def call(
        self,
        op: str,
        params: dict[str, Any],
        *,
        deadline_s: float,
        on_event: Callable[[dict[str, Any]], None] | None = ...,
    ) -> dict[str, Any]:
        """Run one op in the child."""

    def close(self, deadline_s: float = ...) -> None:
        """End the child and everything below it."""


@dataclass(frozen=True)
class Deadlines:
    """Limits in seconds; a hung engine is cut at each of them.

    Attributes:
        start: Until the child says hello.
        load: Until the engine is loaded; a TP=8 Kimi-K2.5 load takes 20 minutes.
        first_batch: The canary, and the first batch after it: kernels are built on first use.
        batch: One batch, computing and writing.
        files: From the last forward pass until every file of the batch is whole.
        shutdown: Orderly end.
    """

    start: float = 60.0
    load: float = 2400.0
    first_batch: float = 1800.0
    batch: float = 1800.0
    files: float = 120.0
    shutdown: float = 30.0


@dataclass(frozen=True)
class SessionSpec:
    """Everything a session needs, decided before the load.

    Attributes:
        name: ``native``, ``patched`` or ``none``.
        plan: Which depths, in which order; None for plain prefill.
        engine_args: Keyword arguments of ``vllm.LLM``.
        expect: Resolved settings that the child must find.
        spool: Where files appear; created when missing.
        vocab_size: Of the model.
        forbidden_ids: Ids that are never sent.
        max_prompt_tokens: The longest prompt the engine takes.
        token_budget: Tokens of one scheduler step.
        chunked: Whether longer prompts are cut into chunks.
        dtype: ``float32`` or ``bfloat16``.
        deadlines: See :class:`Deadlines`.
        beside: Folder into which the patched capture writes too, in the same forward passes as
            the native one; the files there are the caller's. None for one capture alone.
        writer_threads: Threads that write samples where the patched capture runs.
    """

    name: str
    plan: LayerPlan | None
    engine_args: Mapping[str, Any]
    expect: Mapping[str, Any]
    spool: Path
    vocab_size: int
    forbidden_ids: frozenset[int]
    max_prompt_tokens: int
    token_budget: int
    chunked: bool
    dtype: str
    deadlines: Deadlines = field(default_factory=Deadlines)
    beside: Path | None = None
    writer_threads: int = 4


class EngineSession:
    """One load of one engine; see :class:`harness.capture.protocol.Capture`."""

    def __init__(self, host: HostLike, spec: SessionSpec) -> None:
        self._host = host
        self._spec = spec
        self.loads = 0
        self.loaded: Loaded | None = None
        self.proved = False
        self._batches = 0

    @property
    def name(self) -> str:
        """Which capture this is."""
        return self._spec.name

    @property
    def spec(self) -> SessionSpec:
        """What was decided before the load."""
        return self._spec

    @property
    def spool(self) -> Path:
        """Folder where finished files appear."""
        return self._spec.spool

    @property
    def host(self) -> HostLike:
        """The engine's process, for whoever forwards calls to it."""
        return self._host

    def attach(self, loaded: Loaded) -> None:
        """Use an engine that the host has loaded already; it is yet to be proved.

        Args:
            loaded: What the engine said after its load.

        Raises:
            HarnessError: The host cannot be reached.
        """
        self._host.start(self._spec.deadlines.start)
        self.loaded = loaded

    def load(self) -> Loaded:
        """Start the host and load the engine.

        Raises:
            EngineFailed: It died, hung or resolved other settings than asked for.
        """
        spec = self._spec
        for folder in filter(None, (spec.spool, spec.beside)):
            folder.mkdir(parents=True, exist_ok=True)
        self._host.start(spec.deadlines.start)
        self.loads += 1
        plan = spec.plan
        reply = self._host.call(
            "load",
            {
                "engine_args": dict(spec.engine_args),
                "expect": dict(spec.expect),
                "spool": str(spec.spool),
                "capture": spec.name,
                "writer_threads": spec.writer_threads,
                "beside": None if spec.beside is None else str(spec.beside),
                "columns": list(plan.columns) if plan else [],
                "engine_depths": list(plan.engine_depths) if plan else [],
                "final": plan.engine_depths.index(plan.num_layers) if plan else 0,
            },
            deadline_s=spec.deadlines.load,
        )
        self.loaded = Loaded(
            versions=reply["versions"],
            resolved=reply["resolved"],
            workers=reply["workers"],
            seconds=reply["seconds"],
        )
        return self.loaded

    def prove(self) -> Sequence[Finding]:
        """Run the canary and judge it; remembers a pass."""
        spec, plan = self._spec, self._plan()
        reply = self._host.call(
            "canary",
            {
                "prompts": canary_prompts(
                    vocab_size=spec.vocab_size,
                    forbidden=spec.forbidden_ids,
                    longest=spec.max_prompt_tokens,
                    token_budget=spec.token_budget,
                    chunked=spec.chunked,
                ),
                "depths": list(plan.depths),
                "also": _neighbours(plan),
                "deadline_s": spec.deadlines.files,
            },
            deadline_s=spec.deadlines.first_batch,
        )
        findings = judge(reply["prompts"], depths=plan.depths, dtype=spec.dtype)
        self.proved = not findings
        return findings

    def require_proof(self) -> None:
        """Run the canary; refuse to go on with an engine that fails it.

        Raises:
            CheckFailed: ``canary.failed``, with every finding.
        """
        findings = self.prove()
        if findings:
            raise CheckFailed(
                "canary.failed",
                expected="depth L rebuilds the engine's log-probabilities, and every depth "
                "equals the stream seen in the same forward pass",
                found="; ".join(map(str, findings)),
                where=f"{self.name} capture, {dict(self.loaded.versions) if self.loaded else ''}",
                next="nothing was written; try another vLLM release",
                findings=findings,
            )

    def run(self, requests: Sequence[Request], on_sample: Callable[[Captured], None]) -> BatchTimes:
        """Capture a batch; ``on_sample`` is called as each file gets whole.

        Raises:
            CheckFailed: The engine was not proved.
            Refused: The disk is full or read-only.
            EngineFailed: The engine died, hung, or lost a sample.
        """
        if not self.proved:
            self.require_proof()
        waiting = {request.key for request in requests}
        limits = self._spec.deadlines
        limit = limits.batch if self._batches else limits.first_batch

        def on_event(event: dict[str, Any]) -> None:
            if event.get("event") != "sample":
                return
            waiting.discard(event["key"])
            on_sample(self._captured(event))

        reply = self._host.call(
            "extract",
            {
                "samples": [
                    {"key": r.key, "input_ids": list(r.input_ids), "check": r.check}
                    for r in requests
                ],
                "batch_deadline_s": limit,
                "deadline_s": limits.files,
            },
            deadline_s=limit,
            on_event=on_event,
        )
        self._batches += 1
        if waiting:
            raise EngineFailed(
                "engine.sample-lost",
                expected=f"one file for each of {len(requests)} prompts",
                found=f"none for {len(waiting)}, such as {sorted(waiting)[:3]}",
                where=str(self.spool),
                next="run the same command again; whole samples are kept",
            )
        return BatchTimes(generate=reply["generate_seconds"], files=reply["seconds"])

    def plain(self, prompts: Sequence[Sequence[int]], repeats: int = 3) -> dict[str, Any]:
        """Prefill without capture; seconds a repeat and tokens a repeat."""
        return self._host.call(
            "plain",
            {"prompts": [list(ids) for ids in prompts], "repeats": repeats},
            deadline_s=self._spec.deadlines.batch,
        )

    def held(self) -> list[dict[str, int]]:
        """What each worker still keeps: requests, captured ones, resident memory in kB."""
        reply = self._host.call("held", {}, deadline_s=self._spec.deadlines.files)
        workers: list[dict[str, int]] = reply["workers"]
        return workers

    def close(self) -> None:
        """End the engine and everything it started."""
        self._host.close(self._spec.deadlines.shutdown)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _plan(self) -> LayerPlan:
        if self._spec.plan is None:
            raise ValueError("a session without capture has no layer plan")
        return self._spec.plan

    def _captured(self, event: Mapping[str, Any]) -> Captured:
        if "error" in event:
            _raise_write_error(event, self.spool)
        return Captured(
            key=event["key"],
            path=self.spool / event["file"],
            rows=event["rows"],
            columns=event["columns"],
            hidden=event["hidden"],
            dtype=event["dtype"],
            bytes=event["bytes"],
            checksum=event["checksum"],
            token_hash=event["token_hash"],
            last_row=event["last_row"],
            faults=event["faults"],
            logprobs=event.get("logprobs"),
        )


def _neighbours(plan: LayerPlan) -> list[int]:
    """Depths next to the wanted ones, witnessed too so that a shift can be named."""
    near = {depth + step for depth in plan.depths for step in (-1, 1)}
    return sorted(depth for depth in near if 0 <= depth <= plan.num_layers)


def _raise_write_error(event: Mapping[str, Any], spool: Path) -> None:
    code = event.get("errno")
    if code in (errno.ENOSPC, errno.EDQUOT):
        raise Refused(
            "dataset.disk-full",
            expected="room for the next sample",
            found=event["message"],
            where=str(spool),
            next="free space, then run the same command again; whole samples are kept",
        )
    if code in (errno.EROFS, errno.EACCES, errno.EPERM):
        raise Refused(
            "dataset.read-only",
            expected="a folder that can be written",
            found=event["message"],
            where=str(spool),
            next="choose another --out",
        )
    raise EngineFailed(
        "engine.spool-failed",
        expected="a written sample",
        found=event["message"],
        where=f"sample {event['key']} in {spool}",
        next="look at the engine's log in the output folder",
    )
