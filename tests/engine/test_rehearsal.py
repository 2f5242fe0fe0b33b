"""A rehearsal on a real engine: two workers, INT4 experts, four of six layers."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import models
from harness.extraction import EngineOptions
from harness.rehearsal import rehearse

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.mark.parametrize("capture", ["native", "patched"])
def test_a_cut_checkpoint_goes_through_load_proof_and_disk_on_two_ranks(
    tmp_path: Path, capture: str
) -> None:
    whole = models.make("kimi-k2.5-tiny", tmp_path / "model", experts="int4")
    disk = tmp_path / "disk"
    disk.mkdir()
    options = EngineOptions(
        model=whole,
        layers="5,2,3",
        dtype="float32",
        capture="native" if capture == "native" else "patched",
        tensor_parallel_size=2,
    )
    found = rehearse(options, disk=disk, log=tmp_path / "log", longest_prompt=200)
    assert (found.layers, found.of_layers, found.workers) == (4, 6, 2)
    assert found.depths == (3, 1, 2, 4)
    assert any("WNA16" in name for name in found.experts), found.experts
    assert found.samples
    assert not list(disk.iterdir())
