"""The canary must die of every seeded fault, and live without one. One engine a capture."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from harness.capture.session import EngineSession
from harness.extraction import EngineOptions
from harness.oracles.finding import Finding
from harness.oracles.reference import ReferenceHost
from tests.engine._support import assert_parity, capture, reports
from tests.engine.conftest import ASKED, faulty, lane_of

pytestmark = pytest.mark.engine

DEPTHS = (4, 1, 3, 6)
Prove = Callable[..., list[Finding]]


@pytest.fixture(
    scope="module",
    params=["native", "patched", pytest.param("patched-gen1", marks=pytest.mark.slow)],
)
def faulty_engine(
    request: pytest.FixtureRequest,
    tiny_wrapper: Path,
    fault_file: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[EngineSession]:
    if request.param == "native":
        yield request.getfixturevalue("native_engine")
        return
    options = EngineOptions(model=tiny_wrapper, layers=ASKED, dtype="float32")
    options = lane_of(request.param, request)(options)
    with faulty(options, tmp_path_factory.mktemp("engine"), fault_file) as session:
        yield session


@pytest.fixture
def prove(faulty_engine: EngineSession, fault_file: Path) -> Iterator[Prove]:
    def run(**fault: object) -> list[Finding]:
        fault_file.write_text(json.dumps(fault))
        return list(faulty_engine.prove())

    yield run
    fault_file.unlink(missing_ok=True)
    assert faulty_engine.prove() == [], "the engine is not sound again without the fault"


def test_the_canary_lives_without_a_fault(prove: Prove) -> None:
    assert prove() == []


@pytest.mark.parametrize(
    ("depth", "instead"), [(4, 5), (4, 3), (1, 2), (3, 2), (6, 5)], ids=lambda value: str(value)
)
def test_a_shift_of_any_requested_depth_kills_the_canary(
    prove: Prove, depth: int, instead: int
) -> None:
    # Where the neighbour is asked for as well, take one that is not: the engine's list is a set.
    if instead in DEPTHS:
        instead = 2
    findings = prove(**{"kind": "shift", "from": depth, "to": instead})
    named = [
        f for f in findings if f.check == "witness" and f.expected.startswith(f"depth {depth} ")
    ]
    assert named, findings
    if abs(depth - instead) == 1:
        assert any(f"they equal depth {instead}" in f.found for f in named), named


def test_a_doubled_norm_kills_the_canary(prove: Prove) -> None:
    findings = prove(kind="doubled-norm")
    assert {f.check for f in findings} >= {"witness", "logprobs"}
    assert all("depth 6" in f.expected or f.check == "logprobs" for f in findings)


def test_two_swapped_equally_long_samples_kill_the_canary(prove: Prove) -> None:
    findings = prove(kind="swap")
    assert {f.id.split(" (")[0] for f in findings} == {"canary 0", "canary 1"}
    assert {f.check for f in findings} >= {"witness", "logprobs"}


def test_a_lost_row_kills_the_canary_and_not_the_engine(prove: Prove) -> None:
    findings = prove(kind="drop-row")
    # The last row predicts no token of the prompt, so only its absence tells.
    assert {f.check for f in findings} == {"rows"}
    assert "33 rows" in {f.expected for f in findings}


@pytest.mark.parametrize("faulty_engine", ["patched"], indirect=True)
def test_patched_and_native_capture_give_the_same_rows(
    native_engine: EngineSession, faulty_engine: EngineSession, reference: ReferenceHost
) -> None:
    draw = random.Random(5)
    lengths = (1, 17, 64, 100, 33, 100)
    prompts = [[draw.randrange(250) for _ in range(length)] for length in lengths]
    assert_parity(reports(faulty_engine, reference, prompts))
    ours, theirs = capture(faulty_engine, prompts), capture(native_engine, prompts)
    for patched, native in zip(ours, theirs, strict=True):
        worst = np.abs(native).max(axis=(0, 2))
        assert (np.abs(patched - native).max(axis=(0, 2)) <= 1e-5 * worst).all()
