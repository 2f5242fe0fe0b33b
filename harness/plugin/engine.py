"""The engine of a test session: loaded once, proved once, and out of use after a failure."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.capture.protocol import BatchTimes, Captured, Loaded, Request
from harness.capture.session import EngineSession
from harness.dataset.prompt_set import PromptLimits, PromptSet
from harness.dataset.prompts import prompts_of
from harness.engine_facts import Inspection
from harness.errors import CheckFailed, EngineFailed, HarnessError, UsageError
from harness.extraction import (
    ExtractPlan,
    ExtractResult,
    extract,
    open_session,
)
from harness.extraction.accept import Acceptance
from harness.extraction.plan import EnginePlan
from harness.extraction.run import batches
from harness.host.supervision.policy import Supervision
from harness.lease.attach import Attached
from harness.lease.record import Lease
from harness.plugin.sample import LogprobCheck, Sample, read

_STATUS = "harness engine status says whether the lease is still of use"
_BATCH_STEPS = 16
_REASON = 240
TokenIds = Sequence[int] | npt.NDArray[np.integer[Any]]


class Engine:
    """One loaded engine that the canary has proved.

    Made by the ``engine`` fixture. After the engine died, hung, or a call was cut off, every
    later call fails at once and names that first failure.

    Attributes:
        plan: How it was loaded, decided before the load: options, model, layers, recipe.
        loads: Loads of this session so far: 1 and never more, 0 for a leased engine.
        lease: The lease that it belongs to, with that lease's ``loads``; None where this session
            has loaded it.
        log: What the engine printed.
        failure: What put it out of use; None while it can be used.
    """

    def __init__(
        self,
        plan: EnginePlan,
        *,
        log: Path,
        attached: Attached | None = None,
        supervision: Supervision | None = None,
    ) -> None:
        """Make it without starting anything; :meth:`start` loads, or attaches."""
        self.plan = plan
        self.log = log
        self.failure: BaseException | None = None
        self._attached = attached
        self._session: EngineSession = (
            open_session(plan, log=log, supervision=supervision)
            if attached is None
            else attached.session
        )
        self._gate = Acceptance(
            columns=len(self.depths), hidden=plan.model.hidden_size, dtype=plan.dtype
        )
        self._numbers = itertools.count()

    @property
    def loads(self) -> int:
        """Loads of this session so far."""
        return self._session.loads

    @property
    def session(self) -> EngineSession:
        """What this engine sends its calls through; a failure there does not reach `failure`."""
        return self._session

    @property
    def lease(self) -> Lease | None:
        """The lease of an engine that was attached to."""
        return self._attached.lease if self._attached is not None else None

    @property
    def loaded(self) -> Loaded:
        """What the engine says of itself: versions, resolved settings, workers, seconds."""
        if self._session.loaded is None:
            raise self._unusable()
        return self._session.loaded

    @property
    def facts(self) -> Inspection:
        """The machine and the installed vLLM, as seen before the load."""
        return self.plan.seen

    @property
    def depths(self) -> tuple[int, ...]:
        """Depth of each column of a sample."""
        return self.plan.layers.depths if self.plan.layers else ()

    @property
    def proved(self) -> bool:
        """Whether the canary has passed."""
        return self._session.proved

    def start(self) -> None:
        """Load and prove the engine; a leased one is proved anew.

        Raises:
            CheckFailed: ``canary.failed``.
            Refused: ``lease.busy``.
            EngineFailed: It died, hung, was loaded before, or resolved other settings.
        """
        with self._use():
            if self.loads:
                raise EngineFailed(
                    "engine.loaded-twice",
                    expected="one load in a session",
                    found="a second one",
                    where="the engine fixture",
                    next="report this",
                )
            if self._attached is None:
                self._session.load()
            else:
                self._session.attach(self._attached.loaded)
            self._session.require_proof()

    def hidden_states(self, prompts: Sequence[TokenIds], *, check: bool = False) -> list[Sample]:
        """Return the hidden states of prompts.

        Each sample has passed the checks that an extraction makes before it publishes one:
        rows, token ids, shape, dtype, finite, no zero or constant row, no equal layers, no
        rows of another prompt.

        Args:
            prompts: Token ids of each prompt.
            check: Also rebuild each prompt's log-probabilities from depth L, and hold them to
                the canary's limits.

        Returns:
            One sample a prompt, in the order of the prompts, whatever the engine's order.

        Raises:
            UsageError: ``prompts.*``: a prompt is empty, too long, or has an id that may not
                be sent. Nothing was sent then.
            CheckFailed: ``engine.sample-refused``: rows are not what they must be.
            EngineFailed: The engine died, hung, lost a sample, or is out of use.
        """
        checked = self._read(prompts)
        samples: list[Sample] = []
        for batch in batches(checked, range(len(checked)), self.batch_tokens):
            requests = [
                Request(f"call-{next(self._numbers)}", checked[index].token_list(), check)
                for index in batch
            ]
            names = [f"prompt {index}" for index in batch]
            captured, _ = self.capture(requests, names)
            for name, file in zip(names, captured, strict=True):
                samples.append(read(file.path, id=name, depths=self.depths, logprobs=_check(file)))
                file.path.unlink()
        return samples

    def plain(self, prompts: Sequence[TokenIds], *, repeats: int = 3) -> list[float]:
        """Prefill prompts without capture; tokens per second of each repeat, warm-up left out.

        Raises:
            UsageError: ``prompts.*``.
            EngineFailed: The engine died, hung, or is out of use.
        """
        checked = self._read(prompts)
        with self._use():
            reply = self._session.plain([p.token_list() for p in checked.prompts], repeats)
        return [reply["tokens"] / seconds for seconds in reply["seconds"]]

    @property
    def batch_tokens(self) -> int:
        """Tokens handed over at once; between two batches an engine can be cut off."""
        return _BATCH_STEPS * self.plan.session.token_budget

    def capture(
        self, requests: Sequence[Request], names: Sequence[str]
    ) -> tuple[list[Captured], BatchTimes]:
        """Run one batch and check it; the files stay in the spool and are the caller's.

        Args:
            requests: Prompts that were checked.
            names: What to call each one in a message.

        Returns:
            The files, in the order of the requests, and the batch's times.

        Raises:
            CheckFailed: ``engine.sample-refused``; the batch's files are gone then.
            EngineFailed: As :meth:`hidden_states`.
        """
        done: dict[str, Captured] = {}
        with self._use():
            # Nothing is judged in the callback: an error there would end the engine.
            times = self._session.run(requests, lambda file: done.update({file.key: file}))
        files = [done[request.key] for request in requests]
        findings = [
            finding
            for name, request, file in zip(names, requests, files, strict=True)
            for finding in self._gate.check(file, name, request.input_ids)
        ]
        if findings:
            for file in files:
                file.path.unlink(missing_ok=True)
            raise CheckFailed(
                "engine.sample-refused",
                expected="rows that belong to their token, layer and model",
                found="; ".join(map(str, findings)),
                where=f"{self.plan.session.name} capture, {dict(self.loaded.versions)}",
                next=f"keep {self.log} and report the engine's version",
                findings=findings,
            )
        return files, times

    def close(self) -> None:
        """End the engine and everything it started, or leave the lease; repeatable.

        Raises:
            EngineFailed: ``host.survivors``: a process is still there.
        """
        self._session.close()

    def _read(self, prompts: Sequence[TokenIds]) -> PromptSet:
        spec = self.plan.session
        limits = PromptLimits(
            vocab_size=spec.vocab_size,
            max_tokens=spec.max_prompt_tokens,
            forbidden_ids=spec.forbidden_ids,
        )
        return prompts_of(prompts, limits=limits)

    def extract(self, plan: ExtractPlan) -> ExtractResult:
        """Send a plan's prompts through this engine into a dataset folder.

        Raises:
            CheckFailed: ``extract.sample-refused``; this engine is out of use then.
            HarnessError: As :func:`harness.extraction.extract` raises.
        """
        with self._use():
            return extract(plan, session=self._session)

    @contextlib.contextmanager
    def _use(self) -> Iterator[None]:
        """Guard one use of the session: none after a failure, and remember the first one."""
        if self.failure is not None:
            raise self._unusable()
        try:
            yield
        except UsageError:
            raise  # the request was wrong, not the engine
        except BaseException as error:
            # Also a time limit or Ctrl-C in the middle of a call: the host has ended the engine.
            self.failure = error
            raise

    def _unusable(self) -> HarnessError:
        return EngineFailed(
            "engine.out-of-use",
            expected="the engine that was loaded for this session",
            found=f"it is out of use since: {reason(self.failure)}",
            where=str(self.log),
            next="look at the first failure; "
            + ("the next session loads a new engine" if self.lease is None else _STATUS),
        )


def reason(failure: BaseException | None) -> str:
    """Return a failure in one line."""
    if failure is None:
        return "it was never loaded"
    if isinstance(failure, HarnessError):
        name, text = failure.failure.id, failure.failure.found
    else:
        name, text = type(failure).__name__, str(failure)
    # The host appends the log's last lines, which the first failure has shown already.
    first = (text.splitlines() or ["no message"])[0]
    first = first.removesuffix("; last log lines:")
    return f"{name}: {first if len(first) <= _REASON else first[: _REASON - 3] + '...'}"


def _check(file: Captured) -> LogprobCheck | None:
    if file.logprobs is None:
        return None
    return LogprobCheck(file.logprobs["max_err"], file.logprobs["mean_err"])
