"""A key and baselines of it, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.baseline import Baseline, Key, series

KEY = Key(
    gpu="NVIDIA H200",
    gpus=1,
    tensor_parallel_size=1,
    vllm="0.26.0",
    torch="2.11.0",
    speculators="absent",
    model="kimi-k2.5-slice, plain, 6 layers, int4, weights made at load",
    capture="patched",
    dtype="bfloat16",
    token_budget=8192,
    workload="256 x 512 tokens, 4 depths, to /dev/shm",
)
_FIELDS = ("figures", "origin", "date", "source", "seen", "load_seconds", "memory_bytes", "note")


def baseline(**given: Any) -> Baseline:
    """A baseline of :data:`KEY`; fields by name, anything else is a figure's runs."""
    runs: dict[str, Sequence[float]] = {
        n: v for n, v in given.items() if n not in (*_FIELDS, "key")
    }
    runs = runs or {"files_tok_per_s": [100.0] * 5}
    kept = {name: value for name, value in given.items() if name in _FIELDS}
    kept.setdefault("figures", {name: series(name, each) for name, each in runs.items()})
    return Baseline(key=given.get("key", KEY), **kept)
