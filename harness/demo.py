"""The main job, small: a tiny Kimi-K2.5 through a real engine, held against a reference."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from harness import models
from harness.data import data_path
from harness.dataset.samples import read_sample
from harness.dataset.verify import verify
from harness.errors import Refused
from harness.extraction import (
    EngineOptions,
    ExtractOptions,
    ExtractPlan,
    ExtractResult,
    Observer,
    Silent,
    extract,
    make_plan,
)
from harness.oracles.parity import ParityReport
from harness.oracles.reference import Reference, ReferenceHost

PROFILE = "kimi-k2.5-tiny"
_MARK = ".harness-demo"


@dataclass(frozen=True)
class DemoRow:
    """One sample of the demo beside its reference.

    Attributes:
        id: The prompt.
        tokens: Rows.
        layers: Depths of the columns.
        hidden: Hidden size.
        dtype: Of the sample.
        max_rel_err: Largest of the depths' ``max|a-b| / max|b|``.
        status: ``passed``, ``set aside`` (a routing tie in the reference) or ``failed``.
    """

    id: str
    tokens: int
    layers: tuple[int, ...]
    hidden: int
    dtype: str
    max_rel_err: float
    status: str


@dataclass(frozen=True)
class DemoResult:
    """What the demo shows.

    Attributes:
        verified: Every sample passed or was set aside (fewer than 5 %), and the folder verifies.
        rows: One a sample.
        faults: What went wrong, in words.
        extraction: The run.
    """

    verified: bool
    rows: tuple[DemoRow, ...]
    faults: tuple[str, ...]
    extraction: ExtractResult

    @property
    def max_rel_err(self) -> float:
        """Largest relative error among the samples that were held to the limits in full."""
        return max((row.max_rel_err for row in self.rows if row.status != "set aside"), default=0.0)

    def to_json(self) -> dict[str, Any]:
        """Return the demo's one JSON object."""
        return {
            "verified": self.verified,
            "samples": len(self.rows),
            "tokens": sum(row.tokens for row in self.rows),
            "max_rel_err": self.max_rel_err,
            "out": str(self.extraction.out),
            "set_aside": sum(row.status == "set aside" for row in self.rows),
            "faults": list(self.faults),
            "extraction": self.extraction.to_json(),
            "rows": [asdict(row) for row in self.rows],
        }


def demo(folder: Path, *, python: Path, observer: Observer | None = None) -> DemoResult:
    """Make a tiny Kimi-K2.5, extract canned prompts, and compare with HF transformers.

    Args:
        folder: Where model and dataset go; an earlier demo in it is replaced.
        python: Interpreter that has vLLM and transformers.
        observer: Hears of the progress.

    Raises:
        Refused: ``demo.foreign-folder``.
        HarnessError: As the extraction raises.
    """
    watch = observer or Silent()
    _prepare(folder)
    model = folder / "model"
    models.make(PROFILE, model)
    plan = make_plan(
        ExtractOptions(
            engine=EngineOptions(model=model, layers="1,3,4,6", dtype="float32", python=python),
            prompts=data_path("prompts/mixed.jsonl"),
            out=folder / "dataset",
            spot_check_every=4,
        )
    )
    with ThreadPoolExecutor(max_workers=1) as pool:
        # The reference is a second process: it may as well load while the engine loads.
        reference = pool.submit(_references, plan, folder / "reference", python)
        result = extract(plan, watch)
        watch.stage("reference", "Hugging Face transformers, float32")
        reports = _compare(plan, reference.result())
    shutil.rmtree(folder / "reference", ignore_errors=True)
    return _result(plan, result, reports)


def _prepare(folder: Path) -> None:
    if folder.is_dir() and any(folder.iterdir()) and not (folder / _MARK).exists():
        raise Refused(
            "demo.foreign-folder",
            expected="a new or empty folder, or one of an earlier demo",
            found="files of something else",
            where=str(folder),
            next="harness demo --out NEW_FOLDER",
        )
    shutil.rmtree(folder / "dataset", ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MARK).touch()


def _references(plan: ExtractPlan, out: Path, python: Path) -> dict[str, Reference]:
    prompts = {str(prompt.index): prompt.token_list() for prompt in plan.prompts}
    with ReferenceHost(plan.engine.options.model, python, out) as host:
        return host.compute(prompts)


def _compare(plan: ExtractPlan, truth: dict[str, Reference]) -> list[ParityReport]:
    layers = plan.engine.layers
    assert layers is not None
    reports = []
    for prompt in plan.prompts:
        sample = read_sample(plan.options.out / f"hs_{prompt.index}.safetensors")
        report = truth[str(prompt.index)].compare(sample.to_float32(), layers.depths, others=truth)
        reports.append(replace(report, prompt=prompt.id))
    return reports


def _result(
    plan: ExtractPlan, extraction: ExtractResult, reports: list[ParityReport]
) -> DemoResult:
    layers = plan.engine.layers
    assert layers is not None
    rows = tuple(
        DemoRow(
            id=report.prompt,
            tokens=report.tokens,
            layers=layers.depths,
            hidden=plan.engine.model.hidden_size,
            dtype=plan.engine.dtype,
            max_rel_err=report.max_rel_err,
            status=report.status,
        )
        for report in reports
    )
    faults = [fault for report in reports for fault in report.faults]
    verified = verify(plan.options.out)
    faults += [f"{bad.id}: {bad.check}: {bad.found}" for bad in verified.bad]
    aside = sum(report.set_aside for report in reports)
    if aside * 20 > len(reports):
        faults.append(f"{aside} of {len(reports)} prompts set aside, more than 5 %")
    return DemoResult(not faults, rows, tuple(faults), extraction)
