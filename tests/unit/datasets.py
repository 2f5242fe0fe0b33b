"""Good synthetic datasets for the tests of ``harness.dataset``, made without an engine."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from harness.dataset.folder import OutputFolder
from harness.dataset.prompt_set import PromptLimits, PromptSet
from harness.dataset.prompts import read_prompts
from harness.dataset.run_info import RunIdentity, RunInfo
from harness.dataset.samples import file_checksum

VOCAB = 500
LIMITS = PromptLimits(vocab_size=VOCAB, max_tokens=64)
# Tokens, columns and width differ everywhere, so swapped axes cannot pass.
DEPTHS = (1, 3, 6)
HIDDEN = 16


@pytest.fixture
def prompts(tmp_path: Path) -> PromptSet:
    return make_prompts(tmp_path)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def listing(folder: Path) -> dict[str, bytes]:
    """Every file of a folder by its place in it."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def write_lines(path: Path, rows: Iterable[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def prompt_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Prompts of 4 to 40 tokens; every third has no loss mask."""
    random = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for index in range(count):
        ids = random.integers(0, VOCAB, int(random.integers(4, 41))).tolist()
        row: dict[str, Any] = {"id": f"p{index}", "input_ids": ids}
        if index % 3:
            row["loss_mask"] = [int(place >= len(ids) // 2) for place in range(len(ids))]
        rows.append(row)
    return rows


def make_prompts(folder: Path, count: int = 5, seed: int = 0) -> PromptSet:
    return read_prompts(
        write_lines(folder / "prompts.jsonl", prompt_rows(count, seed)), limits=LIMITS
    )


def run_info(prompts: PromptSet, /, *, dtype: str = "float32", **changes: Any) -> RunInfo:
    identity: dict[str, Any] = {
        "model": "blake3:" + "a" * 64,
        "depths": DEPTHS,
        "layout": "training",
        "dtype": dtype,
        "capture": "native",
        "prompts": prompts.fingerprint,
        "vllm": "0.32.0",
    }
    identity.update(changes)
    return RunInfo(RunIdentity(**identity), "/models/tiny", {"num_layers": 6}, HIDDEN)


def make_hidden(tokens: int, seed: int, dtype: str = "float32") -> npt.NDArray[Any]:
    """Random rows ``[tokens, columns, hidden]``; bfloat16 as the upper halves of float32."""
    random = np.random.default_rng(seed)
    rows = random.normal(size=(tokens, len(DEPTHS), HIDDEN)).astype(np.float32)
    if dtype == "bfloat16":
        return (rows.view(np.uint32) >> 16).astype(np.uint16)
    return rows.astype(dtype)


def encode_sample(hidden: npt.NDArray[Any], token_ids: Sequence[int]) -> bytes:
    """A sample file, built by hand so that the reader is not tested against itself."""
    name = {"float32": "F32", "uint16": "BF16", "float16": "F16"}[hidden.dtype.name]
    body, ids = hidden.tobytes(), np.asarray(token_ids, "<i8").tobytes()
    header = json.dumps(
        {
            "hidden_states": {
                "dtype": name,
                "shape": list(hidden.shape),
                "data_offsets": [0, len(body)],
            },
            "token_ids": {
                "dtype": "I64",
                "shape": [len(token_ids)],
                "data_offsets": [len(body), len(body) + len(ids)],
            },
        }
    ).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + body + ids


def spool(folder: OutputFolder, prompts: PromptSet, index: int, dtype: str = "float32") -> Path:
    """Write a sample into the spool as the engine's side would."""
    prompt = prompts[index]
    path = folder.spool / f"{index}.safetensors"
    path.write_bytes(
        encode_sample(make_hidden(prompt.tokens, 1000 + index, dtype), prompt.token_list())
    )
    return path


def publish(folder: OutputFolder, prompts: PromptSet, index: int, dtype: str = "float32") -> None:
    path = spool(folder, prompts, index, dtype)
    folder.publish(path, index, checksum=file_checksum(path), bytes=path.stat().st_size)


def build(out: Path, prompts: PromptSet, *, dtype: str = "float32") -> Path:
    """A whole, finished dataset."""
    with OutputFolder.open(out, run_info(prompts, dtype=dtype), prompts) as folder:
        for index in folder.missing:
            publish(folder, prompts, index, dtype)
        folder.finish(seconds=1.0)
    return out
