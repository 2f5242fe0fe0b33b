"""Breaking it shows: each fault, switched on in the running workers, turns its claim red.

The engine here wants the GPU for itself, so this file runs in a session of its own:
``pytest tests/gpu/test_mutations.py -m gpu --hs-model ... -s`` prints the table. One load.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.extraction import EngineOptions
from harness.plugin._session import SESSION
from harness.settings import Settings
from tests.engine._support import engine_of
from tests.mutations import FAULT_FILE, FAULTS, PRELOAD, Claims, survivors

pytestmark = [pytest.mark.gpu, pytest.mark.engine, pytest.mark.slow]


def test_every_fault_turns_its_claim_red(
    pytestconfig: pytest.Config, hs_settings: Settings, tmp_path: Path
) -> None:
    if pytestconfig.stash[SESSION].keeper.report is not None:
        pytest.skip("the session's own engine holds the GPU: run this file by itself")
    if hs_settings.model is None:
        pytest.skip("no model: give --hs-model")
    options = EngineOptions(
        model=hs_settings.model,
        layers=hs_settings.layers,
        python=hs_settings.python,
        tensor_parallel_size=hs_settings.tensor_parallel_size,
        max_num_batched_tokens=8192,
    )
    env = {"PYTHONPATH": str(FAULTS), FAULT_FILE: str(tmp_path / "fault.json")}
    with engine_of(options, tmp_path, longest_prompt=512, preload=[PRELOAD], env=env) as session:
        claims = Claims(session, bound=0.05)
        assert survivors(claims, tmp_path / "fault.json") == []
