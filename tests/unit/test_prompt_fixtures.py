"""The shipped prompts are what their script writes, and have the properties tests rely on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "fixtures" / "prompts"


@pytest.fixture(scope="module")
def rows() -> dict[str, dict]:
    lines = (FOLDER / "mixed.jsonl").read_text().splitlines()
    return {row["id"]: row for row in map(json.loads, lines)}


def test_the_script_writes_the_committed_bytes(tmp_path: Path):
    out = tmp_path / "mixed.jsonl"
    subprocess.run([sys.executable, FOLDER / "make.py", "--out", out], check=True, cwd=tmp_path)
    assert out.read_bytes() == (FOLDER / "mixed.jsonl").read_bytes()


def test_every_awkward_length_is_there(rows):
    lengths = {len(row["input_ids"]) for row in rows.values()}
    assert {1, 2, 15, 16, 17, 33, 255} <= lengths


def test_ids_are_below_the_special_ids_and_masks_fit(rows):
    for row in rows.values():
        assert all(0 <= token < 256 for token in row["input_ids"])
        assert len(row["loss_mask"]) == len(row["input_ids"])
        assert set(row["loss_mask"]) <= {0, 1}
        assert any(row["loss_mask"])


def test_some_prompts_share_a_long_prefix_and_two_are_identical(rows):
    shared = [row["input_ids"] for id, row in rows.items() if id.startswith("shared-")]
    assert len(shared) == 3
    assert len({tuple(ids[:96]) for ids in shared}) == 1
    assert len({tuple(ids) for ids in shared}) == 3
    assert rows["twin-a"]["input_ids"] == rows["twin-b"]["input_ids"]
    equally_long = rows["as-long-as-a-twin"]["input_ids"]
    assert len(equally_long) == 48
    assert equally_long != rows["twin-a"]["input_ids"]


def test_only_the_twins_are_equal(rows):
    assert len({tuple(row["input_ids"]) for row in rows.values()}) == len(rows) - 1
