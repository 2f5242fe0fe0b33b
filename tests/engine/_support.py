"""Engines of a chosen shape, and their rows beside the reference's."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from harness.capture.protocol import Captured, Request
from harness.capture.session import EngineSession
from harness.dataset.samples import read_sample
from harness.extraction import EngineOptions, open_session
from harness.extraction.plan import plan_engine
from harness.host.supervision.policy import Supervision
from harness.oracles.parity import ParityReport
from harness.oracles.reference import Reference, ReferenceHost

Rows = npt.NDArray[np.float32]
_numbers = itertools.count()


@contextmanager
def engine_of(
    options: EngineOptions,
    folder: Path,
    *,
    longest_prompt: int,
    preload: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    supervision: Supervision | None = None,
) -> Iterator[EngineSession]:
    """Load and prove one engine; end it at the end."""
    plan = plan_engine(options, longest_prompt=longest_prompt, spool=folder / "spool")
    log = folder / "engine.log"
    with open_session(plan, log=log, preload=preload, env=env, supervision=supervision) as session:
        session.load()
        session.require_proof()
        yield session


def capture(session: EngineSession, prompts: Sequence[Sequence[int]]) -> list[Rows]:
    """Send prompts in one batch and return the rows of each, in the order sent."""
    keys = [f"t{next(_numbers)}" for _ in prompts]
    done: dict[str, Captured] = {}
    session.run(
        [Request(key, ids) for key, ids in zip(keys, prompts, strict=True)],
        lambda sample: done.update({sample.key: sample}),
    )
    rows = []
    for key, ids in zip(keys, prompts, strict=True):
        sample = read_sample(done[key].path)
        assert sample.token_ids.tolist() == list(ids)
        assert not done[key].faults
        rows.append(sample.to_float32())
        done[key].path.unlink()
    return rows


def held(session: EngineSession) -> list[dict[str, int]]:
    """What each worker keeps of requests, once the engine is idle."""
    # The engine tells its workers of finished requests with one more, empty step.
    time.sleep(0.3)
    return session.held()


def reports(
    session: EngineSession, reference: ReferenceHost, prompts: Sequence[Sequence[int]]
) -> list[ParityReport]:
    """Compare one batch, prompt by prompt, with the reference."""
    plan = session.spec.plan
    assert plan is not None
    truth: dict[str, Reference] = reference.compute(
        {f"p{number}": ids for number, ids in enumerate(prompts)}
    )
    rows = capture(session, prompts)
    found = []
    for number, got in enumerate(rows):
        one = truth[f"p{number}"]
        found.append(one.compare(got, plan.depths, others=truth))
        one.file.unlink()
    return found


def assert_parity(found: Sequence[ParityReport], *, most_aside: float = 0.05) -> None:
    """Every prompt is right, and few are set aside for a routing tie."""
    faults = [report.explain() for report in found if report.status == "failed"]
    assert not faults, "\n".join(faults)
    aside = sum(report.set_aside for report in found)
    assert aside <= max(1, most_aside * len(found)), f"{aside} of {len(found)} set aside"
    assert any(report.ok for report in found)
