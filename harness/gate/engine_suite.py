"""The engine suite of rung cpu: the tiny Kimi-K2.5 on a candidate's real engine, held to HF.

One load a capture. Every depth, in an order that no engine answers in, of prompts of every
awkward length, twice (a second time every block of a shared prefix has been seen), against a
forward of Hugging Face transformers in float32.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from harness.capture.protocol import Captured, Request
from harness.capture.session import Deadlines, EngineSession
from harness.data import data_path
from harness.dataset.samples import read_sample
from harness.errors import HarnessError
from harness.extraction import EngineOptions, open_session
from harness.extraction.plan import plan_engine
from harness.oracles.parity import ParityReport, summarise
from harness.oracles.reference import Reference

PROFILE = "kimi-k2.5-tiny"
LAYERS = "4,1,3,5,2"
"""Unsorted on purpose; the training layout adds depth L = 6."""

_ROUNDS = 2
_SPEED_REPEATS = 3
# Less than the longest prompt: prompts are cut into chunks where the backend can do that.
_CHUNK = 64
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_PATHS = re.compile(r"/\S*/(?=site-packages/)|/tmp/\S*/")
_LONGEST = 500
CaptureName = Literal["native", "patched"]


def prompts() -> dict[str, list[int]]:
    """Return the canned prompts by name."""
    lines = data_path("prompts/mixed.jsonl").read_text(encoding="utf-8").splitlines()
    return {row["id"]: row["input_ids"] for row in map(json.loads, lines)}


@dataclass(frozen=True)
class CaptureFigures:
    """What one capture did on one release.

    Attributes:
        capture: ``native`` or ``patched``.
        status: ``passed``, ``failed`` or ``refused`` (the harness would not start it).
        problem: Why not passed: the failure's id and what was found.
        model: Class of the model that the engine made.
        chunked: Whether prompts were cut into chunks.
        mla: Whether the engine ran latent attention.
        rows: Rows held to the reference, over all depths of one prompt counted once.
        wrong_rows: Rows with a relative error over 1e-3 in any depth.
        set_aside: Prompts left out in part for a near tie between experts.
        max_rel_err: Largest ``max|a-b| / max|b|`` of one depth of one prompt.
        by_depth: The same for each depth.
        seconds: ``import``, ``load``, ``run`` and ``whole``.
        ratio: Tokens a second with files over plain prefill, in the same engine; 0 unknown.
        versions: Package -> version, as the engine said.
        attention: Attention implementation of the first layer.
    """

    capture: str
    status: str
    problem: str = ""
    model: str = ""
    chunked: bool = False
    mla: bool = False
    rows: int = 0
    wrong_rows: int = 0
    set_aside: int = 0
    max_rel_err: float = 0.0
    by_depth: Mapping[int, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    ratio: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)
    attention: str = ""

    @property
    def ok(self) -> bool:
        """Whether every row was right."""
        return self.status == "passed"

    def to_json(self) -> dict[str, Any]:
        """Return the figures as they stand in the evidence, without the versions."""
        body: dict[str, Any] = {"capture": self.capture, "status": self.status}
        if self.problem:
            body["problem"] = self.problem
        if self.rows:
            body |= {
                "model": self.model,
                "attention": self.attention,
                "mla": self.mla,
                "chunked": self.chunked,
                "rows": self.rows,
                "wrong_rows": self.wrong_rows,
                "prompts_set_aside": self.set_aside,
                "max_rel_err": float(f"{self.max_rel_err:.3g}"),
                "max_rel_err_by_depth": {
                    str(depth): float(f"{error:.3g}") for depth, error in self.by_depth.items()
                },
                "files_to_plain_ratio": round(self.ratio, 3),
            }
        if self.seconds:
            body["seconds"] = {name: round(value, 1) for name, value in self.seconds.items()}
        return body


@dataclass(frozen=True)
class SuiteSpec:
    """What the suite runs with.

    Attributes:
        python: The candidate's interpreter.
        model: A folder of the tiny model.
        folder: Scratch; engine logs stay in it.
        truth: The reference of :func:`prompts`, by name.
        use_mla: Latent attention on or off; None takes it where the release has it.
        deadlines: For a machine that is busy.
    """

    python: Path
    model: Path
    folder: Path
    truth: Mapping[str, Reference]
    use_mla: bool | None = None
    deadlines: Deadlines = field(
        default_factory=lambda: Deadlines(
            start=180.0, load=1200.0, batch=900.0, files=300.0, shutdown=60.0
        )
    )


def run_capture(spec: SuiteSpec, capture: CaptureName, *, chunked: bool) -> CaptureFigures:
    """Load one engine, prove it, and hold its rows to the reference.

    A failure is the answer and is not raised.
    """
    started = time.monotonic()
    folder = spec.folder / f"{capture}{'-chunked' if chunked else ''}"
    try:
        options = EngineOptions(
            model=spec.model,
            layers=LAYERS,
            dtype="float32",
            capture=capture,
            python=spec.python,
            max_num_batched_tokens=_CHUNK if chunked else None,
            use_mla=False if chunked else spec.use_mla,
            deadlines=spec.deadlines,
            # The gate has asked: it would ask again here, and remember a folder that goes away.
            skip_gate=True,
        )
        longest = max(len(ids) for ids in prompts().values())
        plan = plan_engine(options, longest_prompt=longest, spool=folder / "spool")
    except HarnessError as refusal:
        return refused(capture, refusal)
    try:
        with open_session(plan, log=folder / "engine.log") as session:
            return _measure(session, spec, started)
    except HarnessError as failure:
        return CaptureFigures(
            capture,
            "failed",
            _words(failure),
            seconds={"whole": time.monotonic() - started},
            versions=plan.seen.engine.versions,
        )


def refused(capture: CaptureName, refusal: HarnessError) -> CaptureFigures:
    """Return the figures of a capture that is not even started."""
    return CaptureFigures(capture, "refused", _words(refusal))


def _words(error: HarnessError) -> str:
    failure = error.failure
    return f"{failure.id}: expected {failure.expected}, found {publishable(failure.found)}"


def publishable(text: str) -> str:
    """Return words in one line that may be published: no log, no colours, no path of this box."""
    found = _COLOURS.sub("", text).split("; last log lines:")[0]
    found = " ".join(_PATHS.sub("", found).split())
    return found if len(found) <= _LONGEST else f"{found[:_LONGEST]}..."


def _measure(session: EngineSession, spec: SuiteSpec, started: float) -> CaptureFigures:
    loaded = session.load()
    session.require_proof()
    sent = prompts()
    running = time.monotonic()
    reports = [
        report for number in range(_ROUNDS) for report in _round(session, spec.truth, sent, number)
    ]
    ran = time.monotonic() - running
    ratio = _ratio(session, list(sent.values()))
    summary = summarise(reports)
    plan = session.spec.plan
    assert plan is not None
    held = [report for report in reports if not report.set_aside]
    passed = not summary.failed and bool(held)
    worker = loaded.workers[0]
    return CaptureFigures(
        capture=session.name,
        status="passed" if passed else "failed",
        problem="" if passed else _faults(reports),
        model=str(worker["model"]),
        chunked=session.spec.chunked,
        mla=loaded.resolved.get("model_config.use_mla", "") == "True"
        or "MLA" in str(worker["attention"]).upper(),
        rows=sum(report.held_rows for report in reports),
        wrong_rows=summary.wrong_rows,
        set_aside=len(summary.set_aside),
        max_rel_err=max((report.max_rel_err for report in held), default=0.0),
        by_depth={
            depth: max((report.rel_err[column] for report in held), default=0.0)
            for column, depth in sorted(enumerate(plan.depths), key=lambda pair: pair[1])
        },
        seconds={
            "import": loaded.seconds["import"],
            "load": loaded.seconds["load"],
            "run": ran,
            "whole": time.monotonic() - started,
        },
        ratio=ratio,
        versions=loaded.versions,
        attention=str(worker["attention"]),
    )


def _faults(reports: Sequence[ParityReport]) -> str:
    faults = [f"{report.prompt}: {fault}" for report in reports for fault in report.faults]
    return f"{len(faults)} faults, such as {faults[0]}" if faults else "every prompt set aside"


def _round(
    session: EngineSession,
    truth: Mapping[str, Reference],
    sent: Mapping[str, list[int]],
    number: int,
) -> list[ParityReport]:
    plan = session.spec.plan
    assert plan is not None
    done: dict[str, Captured] = {}
    keys = {f"{number}-{place}": name for place, name in enumerate(sent)}
    requests = [Request(key, sent[name], check=True) for key, name in keys.items()]
    session.run(requests, lambda sample: done.update({sample.key: sample}))
    reports = []
    for key, name in keys.items():
        sample = read_sample(done[key].path)
        rows = sample.to_float32()
        if sample.token_ids.tolist() != sent[name]:
            # A row of other tokens is no row of this prompt, whatever it holds.
            rows = np.full_like(rows, np.inf)
        reports.append(truth[name].compare(rows, plan.depths, others=truth))
        done[key].path.unlink()
    return reports


def _ratio(session: EngineSession, sent: list[list[int]]) -> float:
    """Measure files beside plain prefill in one engine, best of some of each."""
    files = []
    for number in range(_SPEED_REPEATS):
        requests = [Request(f"s{number}-{place}", ids) for place, ids in enumerate(sent)]
        times = session.run(requests, lambda sample: sample.path.unlink())
        files.append(times.files)
    plain = session.plain(sent, repeats=_SPEED_REPEATS)["seconds"]
    return float(min(plain) / min(files)) if min(files) else 0.0
