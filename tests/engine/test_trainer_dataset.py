"""speculators' own dataset class reads what the harness writes, without any conversion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.unit.datasets import HIDDEN, build, make_hidden, make_prompts

# Every day the dataset of a real run is read so (test_command_line.py).
pytestmark = [pytest.mark.engine, pytest.mark.slow]

TRAINER = """
import json, sys, warnings
from pathlib import Path
import torch
from hs_connectors import FileTransfer
from safetensors.torch import load_file
from speculators.train.data import ArrowDataset
from harness.dataset.samples import read_sample

warnings.simplefilter("error", UserWarning)
for out in map(Path, sys.argv[1:]):
    data = ArrowDataset(
        max_len=64, datapath=out / "prompts_arrow", transfer=FileTransfer(out), on_missing="raise"
    )
    rows = []
    for i in range(len(data)):
        item = data[i]
        rows.append({
            "aux": list(item["hidden_states"].shape),
            "dtype": str(item["hidden_states"].dtype),
            "last": item["verifier_last_hidden_states"].float().tolist(),
            "first": item["hidden_states"].float()[:, :3].tolist(),
            "ids": item["input_ids"].tolist(),
            "mask": item["loss_mask"].tolist(),
            "length": data.approx_lengths[i],
        })
    for path in sorted(out.glob("hs_*")):
        ours, theirs = read_sample(path).to_torch(), load_file(path)["hidden_states"]
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))
    print(json.dumps(rows))
"""


@pytest.mark.skipif(
    find_spec("speculators") is None or find_spec("torch") is None,
    reason="the trainer's own dataset class needs speculators and torch",
)
def test_the_trainers_own_dataset_class_loads_the_folder_in_full(tmp_path: Path) -> None:
    prompts = make_prompts(tmp_path, 12)
    dtypes = ("float32", "bfloat16")
    folders = [build(tmp_path / dtype, prompts, dtype=dtype) for dtype in dtypes]
    # Its own process: importing speculators imports torch.
    done = subprocess.run(
        [sys.executable, "-c", TRAINER, *map(str, folders)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for dtype, line in zip(dtypes, done.stdout.splitlines()[-2:], strict=True):
        rows = json.loads(line)
        assert len(rows) == 12
        for prompt, row in zip(prompts, rows, strict=True):
            hidden = make_hidden(prompt.tokens, 1000 + prompt.index, dtype)
            if dtype == "bfloat16":
                hidden = (hidden.astype(np.uint32) << 16).view(np.float32)
            assert row["dtype"] == f"torch.{dtype}"
            assert row["aux"] == [prompt.tokens, 2 * HIDDEN]
            assert row["last"] == hidden[:, -1].tolist()
            assert row["first"] == hidden[:, 0, :3].tolist()
            assert row["ids"] == prompt.token_list()
            assert row["mask"] == prompts.effective_mask(prompt.index).tolist()
            assert row["length"] == prompt.tokens
