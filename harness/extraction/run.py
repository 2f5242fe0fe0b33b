"""Carry out a plan: load, prove, capture, accept, publish."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from harness.capture.protocol import Captured, Loaded, Request
from harness.capture.session import EngineSession
from harness.dataset.folder import OutputFolder
from harness.dataset.prompt_set import PromptSet
from harness.dataset.samples import read_sample
from harness.dataset.space import check_space
from harness.errors import CheckFailed, Refused
from harness.extraction.accept import Acceptance
from harness.extraction.clean import require_clean
from harness.extraction.observer import Observer, Silent
from harness.extraction.plan import ExtractPlan
from harness.extraction.session import open_session
from harness.host.supervision.policy import Supervision

# The engine idles at each batch's end until its last files are whole: 0.107 s on one H200 at
# Kimi's width and 4 depths (fixtures/evidence), 4 % of 16 steps of 8,192 tokens, 1 % of 64.
_BATCH_STEPS = 64
_MAX_BATCH_PROMPTS = 1024
_MAX_BATCH_TOKENS = 2**21  # about 16 MB of JSON; a message has 64 MiB at most
_RUNS = itertools.count()
# In bfloat16 another batch shape alone moves rows by 1e-2 (measured at Kimi's width).
_SAME_MODEL = {"float32": 1e-3, "bfloat16": 5e-2}


@dataclass(frozen=True)
class ExtractResult:
    """What a run did.

    Attributes:
        out: The folder.
        samples: Samples in it now.
        tokens: Tokens in it now.
        kept: Samples that were there already and whole.
        seconds: From the first batch to the last published sample, load left out.
        tokens_per_s: Newly captured tokens over ``seconds``; 0 where nothing was to do.
        load_seconds: Import and load of the engine.
        capture: Which capture.
        checked: Samples whose log-probabilities were rebuilt during the run.
        bytes: Newly written bytes.
    """

    out: Path
    samples: int
    tokens: int
    kept: int
    seconds: float
    tokens_per_s: float
    load_seconds: float
    capture: str
    checked: int
    bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return the result as a flat JSON object."""
        return {**asdict(self), "out": str(self.out)}


def extract(
    plan: ExtractPlan,
    observer: Observer | None = None,
    *,
    session: EngineSession | None = None,
    supervision: Supervision | None = None,
    skip_checks: Collection[str] = (),
    before_load: Callable[[], None] | None = None,
) -> ExtractResult:
    """Carry out an extraction.

    A sample gets its final name only after the engine was proved by the canary and the
    sample itself was accepted. A run that ends early keeps its whole samples; the same
    call goes on from there.

    Args:
        plan: What to do.
        observer: Hears of the progress.
        session: An engine that is loaded already, as the plan says; it stays open. By
            default one is loaded for this run, where anything is left to do, and ended after it.
        supervision: What to do about an engine of this run that cannot succeed; who hears of
            it is the observer.
        skip_checks: Checks of preflight that are left out before a load onto GPUs.
        before_load: Called before an engine of this run is loaded, a new folder not yet made.

    Raises:
        HarnessError: As :mod:`harness.errors` sorts them.
    """
    watch = observer or Silent()
    fresh = not plan.options.out.exists()
    if fresh:
        # Before the folder is made, so that a refusal leaves nothing behind.
        check_space(plan.options.out, plan.bytes, samples=len(plan.prompts))
        if session is None:
            _look(plan, range(len(plan.prompts)), watch, skip_checks)
            if before_load is not None:
                before_load()
    with OutputFolder.open(plan.options.out, plan.info, plan.prompts) as folder:
        _forget_spool(folder.spool)
        missing = folder.missing
        check_space(folder.path, plan.bytes_of(missing), samples=len(missing))
        run = _Run(plan, folder, watch)
        if missing and session is not None:
            run.capture(session, missing)
        elif missing:
            if not fresh:
                _look(plan, missing, watch, skip_checks)
                if before_load is not None:
                    before_load()
            watching = replace(
                supervision or Supervision(), on_progress=watch.loading, on_warning=watch.warning
            )
            log = folder.path / "engine.log"
            with open_session(plan.engine, log=log, supervision=watching) as own:
                watch.stage("load", f"{plan.engine.options.model}")
                own.load()
                watch.stage("canary")
                own.require_proof()
                watch.stage("capture", f"{len(missing)} prompts")
                run.capture(own, missing)
        folder.finish(seconds=run.seconds)
    return run.result(kept=len(plan.prompts) - len(missing))


def _look(
    plan: ExtractPlan, missing: Sequence[int], watch: Observer, skip: Collection[str]
) -> None:
    """Refuse a load onto GPUs that are not clean."""
    if plan.engine.seen.platform.device == "cuda":
        watch.stage("preflight")
        output = plan.bytes_of(missing)
        out, files = plan.options.out, len(missing)
        require_clean(plan.engine, out=out, output=output, files=files, skip=skip)


def batch_tokens(token_budget: int) -> int:
    """Return how many tokens are handed over at once, where nobody asks for a number.

    Args:
        token_budget: Tokens of one scheduler step.
    """
    return min(_BATCH_STEPS * token_budget, _MAX_BATCH_TOKENS)


def batches(prompts: PromptSet, indices: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Cut indices into batches of about so many tokens, in order.

    A batch is the unit of a deadline and of a lost engine's lost work; the engine does
    its own batching inside.
    """
    batch: list[int] = []
    size = 0
    for index in indices:
        length = prompts[index].tokens
        if batch and (size + length > tokens or len(batch) >= _MAX_BATCH_PROMPTS):
            yield batch
            batch, size = [], 0
        batch.append(index)
        size += length
    if batch:
        yield batch


class _Run:
    """The state of one run between two batches."""

    def __init__(self, plan: ExtractPlan, folder: OutputFolder, observer: Observer) -> None:
        model, layers = plan.engine.model, plan.engine.layers
        assert layers is not None
        self._plan, self._folder, self._observer = plan, folder, observer
        self._gate = Acceptance(
            columns=len(layers.depths), hidden=model.hidden_size, dtype=plan.engine.dtype
        )
        self.seconds = 0.0
        self.tokens = 0
        self.bytes = 0
        self.samples = 0
        self.checked = 0
        self._loaded: Loaded | None = None
        # A session may serve several runs; a key names one sample of one run.
        self._prefix = f"{next(_RUNS)}-"

    def capture(self, session: EngineSession, missing: Sequence[int]) -> None:
        self._loaded = session.loaded
        if self._loaded is not None:
            record = _engine_record(self._plan, self._loaded)
            self._folder.record(versions=self._loaded.versions, engine=record)
        prompts, every = self._plan.prompts, self._plan.options.spot_check_every
        if self._folder.whole:
            self._same_model(session)
        asked = self._plan.options.batch_tokens
        budget = asked or batch_tokens(self._plan.engine.session.token_budget)
        started = time.monotonic()
        eligible = 0
        for batch in batches(prompts, missing, budget):
            requests = []
            for index in batch:
                # A prompt of one token has no next token to hold a rebuilt one against.
                long_enough = prompts[index].tokens > 1
                check = long_enough and every > 0 and eligible % every == 0
                eligible += long_enough
                ids = prompts[index].token_list()
                requests.append(Request(f"{self._prefix}{index}", ids, check))
            session.run(requests, self._publish)
            self.seconds = time.monotonic() - started

    def _same_model(self, session: EngineSession) -> None:
        """Capture one kept sample anew: a model's fingerprint leaves out its weights.

        Raises:
            Refused: ``dataset.other-model``.
        """
        prompts = self._plan.prompts
        # One token alone would leave attention out; the shortest of the rest costs least.
        index = min(self._folder.whole, key=lambda i: (prompts[i].tokens < 2, prompts[i].tokens))
        found: list[Captured] = []
        request = Request(f"{self._prefix}again", prompts[index].token_list())
        session.run([request], found.append)
        again = read_sample(found[0].path).to_float32()
        found[0].path.unlink()
        line = self._folder.whole[index]
        kept = read_sample(self._folder.path / line.file).to_float32()
        error = float(np.linalg.norm(again - kept) / np.linalg.norm(kept))
        if not error <= _SAME_MODEL[self._plan.engine.dtype]:
            raise Refused(
                "dataset.other-model",
                expected=f"sample {line.id} as it was captured before",
                found=f"other rows (relative difference {error:.2g})",
                where=str(self._folder.path),
                next="the weights are not those of the earlier run: choose another --out",
            )

    def _publish(self, sample: Captured) -> None:
        index = int(sample.key.removeprefix(self._prefix))
        prompt = self._plan.prompts[index]
        findings = self._gate.check(sample, prompt.id, prompt.token_list())
        if findings:
            sample.path.unlink(missing_ok=True)
            raise CheckFailed(
                "extract.sample-refused",
                expected="rows that belong to their token, layer and model",
                found="; ".join(map(str, findings)),
                where=f"prompt {prompt.id} (index {index})",
                next="this sample was not written; keep engine.log and report the engine's version",
                findings=findings,
            )
        self._folder.publish(sample.path, index, checksum=sample.checksum, bytes=sample.bytes)
        self.samples += 1
        self.tokens += sample.rows
        self.bytes += sample.bytes
        self.checked += sample.logprobs is not None
        self._observer.progress(self.samples, self.tokens, self.bytes)

    def result(self, *, kept: int) -> ExtractResult:
        loaded = self._loaded
        return ExtractResult(
            out=self._folder.path,
            samples=len(self._folder.whole),
            tokens=sum(line.tokens for line in self._folder.whole.values()),
            kept=kept,
            seconds=round(self.seconds, 4),
            tokens_per_s=round(self.tokens / self.seconds, 1) if self.seconds else 0.0,
            load_seconds=round(sum(loaded.seconds.values()), 2) if loaded else 0.0,
            capture=self._plan.engine.session.name,
            checked=self.checked,
            bytes=self.bytes,
        )


def _engine_record(plan: ExtractPlan, loaded: Loaded) -> dict[str, Any]:
    return {
        **plan.engine.recipe.to_json(),
        "resolved": dict(loaded.resolved),
        "workers": [dict(worker) for worker in loaded.workers],
    }


def _forget_spool(spool: Path) -> None:
    """Remove what an earlier, ended run left in the spool; we hold the folder's lock."""
    if spool.is_dir():
        for path in spool.iterdir():
            if path.is_file():
                path.unlink()
