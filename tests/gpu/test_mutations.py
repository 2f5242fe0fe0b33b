"""Breaking it shows: each fault, switched on in the running workers, turns its claim red.

``ci/box/break.sh`` runs this file and prints the table. One load: the session's engine ends before.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.extraction import EngineOptions
from tests.engine._support import engine_of
from tests.mutations import FAULT_FILE, FAULTS, PRELOAD, Claims, survivors
from tests.noise import EVEN

pytestmark = [pytest.mark.gpu, pytest.mark.engine, pytest.mark.slow]


@pytest.mark.usefixtures("free_gpus")
def test_every_fault_turns_its_claim_red(own_engine: EngineOptions, tmp_path: Path) -> None:
    env = {"PYTHONPATH": str(FAULTS), FAULT_FILE: str(tmp_path / "fault.json")}
    with engine_of(own_engine, tmp_path, longest_prompt=512, preload=[PRELOAD], env=env) as session:
        claims = Claims(session, bound=EVEN)
        assert survivors(claims, tmp_path / "fault.json") == []
