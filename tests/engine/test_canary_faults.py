"""The canary must die of every seeded fault, and live without one. One load serves all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.capture.session import EngineSession
from harness.extraction import EngineOptions
from harness.oracles.finding import Finding
from tests.engine._support import engine_of

pytestmark = pytest.mark.engine

DEPTHS = (4, 1, 3, 6)
Prove = Callable[..., list[Finding]]


@pytest.fixture(scope="module")
def fault_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fault") / "fault.json"


@pytest.fixture(scope="module")
def faulty_engine(
    tiny_wrapper: Path, fault_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineSession]:
    options = EngineOptions(model=tiny_wrapper, layers="4,1,3", dtype="float32")
    with engine_of(
        options,
        tmp_path_factory.mktemp("engine"),
        longest_prompt=120,
        preload=["seeded_faults"],
        env={
            "PYTHONPATH": str(Path(__file__).parent / "faults"),
            "HARNESS_TEST_FAULT": str(fault_file),
        },
    ) as session:
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
