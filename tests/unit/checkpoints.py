"""Reading made checkpoints without the code that made them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

TINY = "kimi-k2.5-tiny"

_NUMPY = {"F32": np.dtype("<f4"), "I32": np.dtype("<i4"), "BF16": np.dtype("<u2")}


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def header(folder: Path) -> dict[str, dict[str, Any]]:
    """Return every tensor's header entry over all shards."""
    return {name: entry for shard in shards(folder) for name, entry, _ in _entries(shard)}


def tensors(folder: Path) -> dict[str, npt.NDArray[Any]]:
    """Return every tensor over all shards; bfloat16 as float32."""
    out: dict[str, npt.NDArray[Any]] = {}
    for shard in shards(folder):
        for name, entry, data in _entries(shard):
            array = np.frombuffer(data, _NUMPY[entry["dtype"]]).reshape(entry["shape"])
            if entry["dtype"] == "BF16":
                array = (array.astype(np.uint32) << 16).view(np.float32)
            out[name] = array
    return out


def _entries(shard: Path) -> list[tuple[str, dict[str, Any], bytes]]:
    raw = shard.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    entries = json.loads(raw[8 : 8 + length])
    entries.pop("__metadata__", None)
    body = raw[8 + length :]
    return [(n, e, body[e["data_offsets"][0] : e["data_offsets"][1]]) for n, e in entries.items()]
