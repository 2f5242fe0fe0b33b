"""Rungs gpu and full: the GPU lane on the candidate's own environment, on a box with GPUs."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import models
from harness.baseline import model_name
from harness.engine_facts import Inspection, inspect
from harness.errors import HarnessError
from harness.gate._session import Session, run
from harness.gate.digests import code_digest, patch_digest
from harness.gate.engine_suite import publishable
from harness.gate.evidence import FAILED, PASSED, Evidence, Pair, Proof, today
from harness.gate.scale import Rung, RungResult, RungStatus, Verdict
from harness.models import KIMI_K25
from harness.preflight import Report
from harness.preflight import Verdict as Cleanliness
from harness.preflight.run import Asked, look, need_of
from harness.seams import Consumer, Surface
from harness.standing import standing

SUITE = Path(__file__).resolve().parents[2] / "tests" / "gpu"
"""Where a checkout has the suite; it is not packed."""
RANKS = 8
"""GPUs of rung full, where nobody says otherwise: what Kimi-K2.5 takes."""

# The lane: what `tests/gpu` has for every day (CONTRIBUTING.md).
_LANE = "gpu and not slow"
# Files are timed on a disk in memory; a batch of them needs so much room there.
_MEMORY, _ROOM = Path("/dev/shm"), 16 << 30
_LIMITS_S = {Rung.GPU: 2 * 3600.0, Rung.FULL: 6 * 3600.0}
_TOLD = 3


@dataclass(frozen=True)
class GpuOptions:
    """How a rung with GPUs is climbed.

    Attributes:
        model: Checkpoint folder; None: the plugin's tiny model, and no rung full.
        ranks: GPUs that share the model.
        suite: The tests.
        pytest: Program that runs them, with the harness and its plugin.
        limit_s: Seconds for the session; None: the rung's own.
    """

    model: Path | None = None
    ranks: int = 1
    suite: Path = SUITE
    pytest: tuple[str, ...] = field(default=(sys.executable, "-m", "pytest"))
    limit_s: float | None = None


@dataclass(frozen=True)
class Box:
    """What stands between a rung and the machine; the tests put others in their place.

    Attributes:
        inspect: Says what an interpreter has.
        look: Says whether the GPUs can be used.
    """

    inspect: Callable[[Path], Inspection] = inspect
    look: Callable[[Asked], Report] = field(
        default=lambda asked: look(need_of(asked), python=asked.python)
    )


def climb(
    rung: Rung,
    surface: Surface,
    python: Path | None,
    options: GpuOptions,
    *,
    box: Box | None = None,
) -> RungResult:
    """Climb rung gpu or rung full.

    Only what ran to its end says anything: where the box, the environment or the model is not
    what the rung needs, it is skipped with the reason, and where the session tells of no test
    that ran, it is unknown.

    Args:
        rung: ``gpu`` or ``full``.
        surface: What the candidate offers.
        python: Interpreter of an environment that has the candidate.
        options: Model, GPUs and time.
        box: The machine.
    """
    place = box or Box()
    reason = _unready(rung, options, python)
    if reason or python is None:
        return RungResult(rung, RungStatus.SKIPPED, reason)
    try:
        seen = place.inspect(python)
        reason = _other(seen, surface, python)
        if reason:
            return RungResult(rung, RungStatus.SKIPPED, reason)
        asked = Asked(model=options.model, devices=options.ranks, python=python, cuda=seen.cuda)
        report = place.look(asked)
    except HarnessError as error:
        return RungResult(rung, RungStatus.SKIPPED, _words(error))
    if report.verdict is not Cleanliness.CLEAN:
        said = "; ".join(str(one) for one in report.problems)
        return RungResult(rung, RungStatus.SKIPPED, f"preflight {report.verdict}: {said}")
    started = time.monotonic()
    capture = capture_of(surface)
    session = _run(rung, options, python, capture)
    found = _Found(rung, session, seen, surface, report, options, capture)
    return _result(found, time.monotonic() - started)


def capture_of(surface: Surface) -> str:
    """Return the capture that a release is asked for: vLLM's own where its files allow it."""
    return "patched" if standing(surface, Consumer.NATIVE, {}).problems else "native"


def _unready(rung: Rung, options: GpuOptions, python: Path | None) -> str:
    if not options.suite.is_dir():
        return "needs a checkout: the GPU suite is not packed"
    if importlib.util.find_spec("pytest") is None:
        return "needs pytest: pip install 'hidden-state-harness[test]'"
    if rung is Rung.FULL:
        reason = _not_whole(options.model)
        if reason:
            return reason
    if python is None:
        return "needs --python: an environment with the candidate, built for this box's GPUs"
    return ""


def _not_whole(model: Path | None) -> str:
    if model is None:
        return "needs --model: the folder of the whole Kimi-K2.5"
    try:
        facts = models.read(model)
    except HarnessError as error:
        return _words(error)
    text = (facts.num_layers, facts.hidden_size)
    whole = (KIMI_K25.num_hidden_layers, KIMI_K25.hidden_size)
    if facts.architecture.startswith("KimiK25") and text == whole:
        return ""
    return (
        f"needs the whole Kimi-K2.5 ({whole[0]} layers, {whole[1]} wide); {model.name} is "
        f"{facts.architecture} with {text[0]} layers, {text[1]} wide: take rung gpu for it"
    )


def _other(seen: Inspection, surface: Surface, python: Path) -> str:
    """Why an environment is not the candidate's, or not one for GPUs."""
    if seen.engine.vllm is None:
        return f"no vLLM in {python}"
    if seen.platform.device != "cuda":
        return f"the vLLM in {python} is a CPU build ({seen.engine.dist}), which uses no GPU"
    # A checkout tells no version; then its environment is taken at its word.
    there = seen.engine.vllm.public
    if surface.release[:1].isdigit() and there != surface.release:
        return f"the vLLM in {python} is {there}, not {surface.release}"
    return ""


def _run(rung: Rung, options: GpuOptions, python: Path, capture: str) -> Session:
    with tempfile.TemporaryDirectory(prefix=f"harness-{rung}-", dir=_memory()) as folder:
        report = Path(folder) / "junit.xml"
        model = () if options.model is None else ("--hs-model", str(options.model.absolute()))
        words = [
            *options.pytest,
            *(str(options.suite), "-m", _LANE, "--hs-require-gpu", "-p", "no:cacheprovider"),
            *("--hs-python", str(python.absolute()), "--hs-capture", capture),
            *("--hs-tensor-parallel-size", str(options.ranks), *model),
            *(f"--junitxml={report}", f"--basetemp={folder}/tmp"),
        ]
        root = options.suite.parents[1]
        return run(words, report, cwd=root, limit_s=options.limit_s or _LIMITS_S[rung])


def _memory() -> Path | None:
    try:
        return _MEMORY if shutil.disk_usage(_MEMORY).free >= _ROOM else None
    except OSError:
        return None


@dataclass(frozen=True)
class _Found:
    """A session that ran, with all that is known around it."""

    rung: Rung
    session: Session
    seen: Inspection
    surface: Surface
    report: Report
    options: GpuOptions
    capture: str


def _result(found: _Found, seconds: float) -> RungResult:
    session, capture = found.session, found.capture
    if session.failed:
        said = f"{len(session.failed)} of {session.tests} tests failed: {_failures(session)}"
        status, verdict = RungStatus.FAILED, Verdict.REGRESSED
    elif session.ok:
        skipped = f", {session.skipped} skipped" if session.skipped else ""
        said = f"{capture}: {session.passed} tests passed{skipped}"
        status, verdict = RungStatus.PASSED, Verdict.OK
    else:
        why = "; ".join(session.unfit[:_TOLD]) or session.end
        if session.code == 0:
            why = f"{session.skipped} of {session.tests} tests were skipped"
        said = f"nothing is proved: {why}"
        status, verdict = RungStatus.UNKNOWN, Verdict.UNKNOWN
    # A session that proves and refutes nothing is no evidence.
    figures = {} if status is RungStatus.UNKNOWN else _evidence(found).to_json()
    return RungResult(found.rung, status, said, seconds, figures, {capture: verdict})


def _evidence(found: _Found) -> Evidence:
    session, options, seen = found.session, found.options, found.seen
    model = "the plugin's tiny model" if options.model is None else _called(options.model)
    versions = dict(seen.engine.versions)
    counts = {"tests": session.tests, "passed": session.passed, "skipped": session.skipped}
    reason = "" if session.ok else _failures(session)
    outcome = PASSED if session.ok else FAILED
    more: dict[str, Any] = {"measured": dict(session.figures)} if session.figures else {}
    if options.ranks > 1:
        more["tensor_parallel_size"] = options.ranks
    return Evidence(
        file="",
        date=today(),
        rung=found.rung,
        what=f"pytest -m gpu on {model}, tensor parallel {options.ranks}",
        pair=Pair(
            vllm=found.surface.release,
            dist=seen.engine.dist,
            device="cuda",
            hardware=_hardware(found.report),
            torch=versions.get("torch", ""),
            transformers=versions.get("transformers", ""),
            python=seen.python,
        ),
        proofs=(Proof(found.capture, outcome, reason, counts),),
        hashes={
            "surface": found.surface.digest,
            "patches": patch_digest(),
            "code": code_digest(),
        },
        figures=more,
    )


def _called(model: Path) -> str:
    """A model as baselines call it: a folder's name says nothing on another machine."""
    try:
        return model_name(model)
    except HarnessError:
        return model.name


def _failures(session: Session) -> str:
    return f"{', '.join(session.failed[:_TOLD])}: {publishable(session.first)}"


def _hardware(report: Report) -> str:
    cards = [row.name for row in report.rows if row.used_by_engine]
    kinds = (f"{cards.count(kind)} x {kind}" for kind in dict.fromkeys(cards))
    return ", ".join(kinds) or "unnamed GPUs"


def _words(error: HarnessError) -> str:
    failure = error.failure
    return f"{failure.id}: {failure.found}"
