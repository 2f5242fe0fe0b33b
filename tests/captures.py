"""Two captures in the same forward passes, and the capture beside the engine without it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from harness.capture.protocol import Captured, Request
from harness.capture.session import EngineSession
from harness.dataset.samples import read_sample
from harness.extraction import open_session
from harness.extraction.plan import EnginePlan
from tests.noise import Rows


def session_beside(plan: EnginePlan, folder: Path) -> EngineSession:
    """A session of the native capture whose engine runs the patched one as well."""
    both = replace(plan, session=replace(plan.session, beside=folder / "beside"))
    return open_session(both, log=folder / "engine.log")


@dataclass(frozen=True)
class Difference:
    """How far two files of one prompt are apart."""

    rows: int
    wrong_rows: int
    worst: float


def compare_beside(session: EngineSession, prompts: Sequence[Sequence[int]]) -> list[Difference]:
    """Send one batch; compare both captures' files bit for bit."""
    beside = session.spec.beside
    assert beside is not None
    keys = [f"both-{time.monotonic_ns()}-{number}" for number in range(len(prompts))]
    requests = [Request(key, ids) for key, ids in zip(keys, prompts, strict=True)]
    done: dict[str, Captured] = {}
    session.run(requests, lambda sample: done.update({sample.key: sample}))
    found = []
    for key, ids in zip(keys, prompts, strict=True):
        other = beside / f"{key}.safetensors"
        native, patched = read_sample(done[key].path), read_sample(other)
        assert native.token_ids.tolist() == patched.token_ids.tolist() == list(ids)
        unlike = (native.hidden != patched.hidden).any(axis=(1, 2))
        worst = np.abs(native.to_float32() - patched.to_float32()).max() if unlike.any() else 0.0
        found.append(Difference(len(ids), int(unlike.sum()), float(worst)))
        done[key].path.unlink()
        other.unlink()
    return found


def files_complete(session: EngineSession, prompts: Sequence[Sequence[int]]) -> float:
    """Seconds until every file of one batch is whole; each is consumed as it comes."""
    name = time.monotonic_ns()
    requests = [Request(f"s{name}-{n}", ids) for n, ids in enumerate(prompts)]
    started = time.monotonic()
    session.run(requests, lambda sample: sample.path.unlink())
    return time.monotonic() - started


def rows_alone(session: EngineSession, prompts: Sequence[Sequence[int]]) -> list[Rows]:
    """Rows of each prompt, sent by itself: no other prompt shapes its forward pass."""
    found: list[Rows] = []

    def keep(sample: Captured) -> None:
        found.append(read_sample(sample.path).to_float32())
        sample.path.unlink()

    for number, ids in enumerate(prompts):
        session.run([Request(f"alone-{time.monotonic_ns()}-{number}", ids)], keep)
    return found
