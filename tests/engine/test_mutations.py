"""The table of faults that the GPU lane runs (tests/gpu/test_mutations.py), on a CPU engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.extraction import EngineOptions
from tests.engine._support import engine_of
from tests.mutations import FAULT_FILE, FAULTS, PRELOAD, Claims, survivors
from tests.noise import Bound

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.mark.parametrize("capture", ["native", "patched"])
def test_every_fault_turns_its_claim_red(tiny_wrapper: Path, tmp_path: Path, capture: str) -> None:
    options = EngineOptions(
        model=tiny_wrapper,
        layers="4,1,3",
        dtype="float32",
        capture="native" if capture == "native" else "patched",
    )
    env = {"PYTHONPATH": str(FAULTS), FAULT_FILE: str(tmp_path / "fault.json")}
    with engine_of(options, tmp_path, longest_prompt=512, preload=[PRELOAD], env=env) as session:
        # On shared cores the pace of a batch moves by far more than on a GPU of one's own.
        claims = Claims(session, bound=Bound(1e-4), slack=0.3, late=1.0)
        assert survivors(claims, tmp_path / "fault.json") == []
