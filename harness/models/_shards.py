"""The weights' files: which there are, whether they fit their index, and what names them."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blake3 import blake3

from harness.errors import CheckFailed
from harness.models._at_load import WEIGHTS_PLAN
from harness.models._facts import read_config
from harness.models._safetensors import read_header_bytes

INDEX_FILE = "model.safetensors.index.json"
_NEXT = "fetch or make the checkpoint again"
_BITS = {
    "BOOL": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "I8": 8,
    "U8": 8,
    "BF16": 16,
    "F16": 16,
    "I16": 16,
    "U16": 16,
    "F32": 32,
    "I32": 32,
    "U32": 32,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}


@dataclass(frozen=True)
class _Index:
    """The index as read: None where a checkpoint has none (a single file, or no weights)."""

    raw: bytes | None
    weight_map: dict[str, str]


def fingerprint(path: str | os.PathLike[str]) -> str:
    """Name a checkpoint by its configuration and its shards' headers and sizes.

    No payload is read, so that half a terabyte costs a second. Two checkpoints whose tensors
    have the same names, shapes and dtypes but other values share a name; models made here do
    not, since their headers carry what they were made from.

    Args:
        path: Folder of the checkpoint; one without weights is named by its configuration.

    Returns:
        ``blake3:`` and 64 hexadecimal digits. The folder's own path plays no part.

    Raises:
        UsageError: As :func:`harness.models.read`.
        CheckFailed: ``models.missing-shard``, ``models.broken-shard`` or
            ``models.broken-index``.
    """
    folder = Path(path)
    read_config(folder)
    index = _read_index(folder)
    state = blake3()
    _add(state, b"config", (folder / "config.json").read_bytes())
    _add(state, b"index", index.raw or b"")
    if (folder / WEIGHTS_PLAN).is_file():
        _add(state, b"plan", (folder / WEIGHTS_PLAN).read_bytes())
    for name in _shard_names(folder, index):
        header = _read_header(folder / name)
        _add(state, b"shard", name.encode())
        _add(state, b"size", str((folder / name).stat().st_size).encode())
        _add(state, b"header", header)
    return f"blake3:{state.hexdigest()}"


def check_shards(path: str | os.PathLike[str]) -> str:
    """Hold a checkpoint's shards against its index, without reading a payload.

    Args:
        path: Folder of the checkpoint.

    Returns:
        One line that says what was found in order.

    Raises:
        UsageError: As :func:`harness.models.read`.
        CheckFailed: ``models.no-weights``, ``models.missing-shard``, ``models.broken-shard``,
            ``models.broken-index``, ``models.cut-shard`` or ``models.index-differs``.
    """
    folder = Path(path)
    read_config(folder)
    index = _read_index(folder)
    names = _shard_names(folder, index)
    if not names and (folder / WEIGHTS_PLAN).is_file():
        return f"weights are made at load, from {WEIGHTS_PLAN}"
    if not names:
        raise CheckFailed(
            "models.no-weights",
            expected="safetensors files beside config.json",
            found="none",
            where=str(folder),
            next=_NEXT,
        )
    held: dict[str, str] = {}
    size = 0
    for name in names:
        shard = folder / name
        held.update(dict.fromkeys(_tensors(shard), name))
        size += shard.stat().st_size
    if index.raw is not None:
        _compare(folder, index.weight_map, held)
    agree = "; headers, sizes and index agree" if index.raw else "; header and size agree"
    number = "1 shard" if len(names) == 1 else f"{len(names)} shards"
    return f"{number}, {len(held)} tensors, {size / 1e9:.3f} GB{agree}"


def _add(state: Any, label: bytes, content: bytes) -> None:
    # Lengths keep the fields apart: no two lists of fields give one byte string.
    state.update(b"%s %d\0" % (label, len(content)))
    state.update(content)


def _read_index(folder: Path) -> _Index:
    where = folder / INDEX_FILE
    if not where.is_file():
        return _Index(None, {})
    raw = where.read_bytes()
    try:
        weight_map = json.loads(raw)["weight_map"]
        if not all(isinstance(shard, str) for shard in weight_map.values()):
            raise TypeError("a shard's name is not a text")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckFailed(
            "models.broken-index",
            expected="a JSON object whose weight_map names a shard for each tensor",
            found=f"{type(error).__name__}: {error}",
            where=str(where),
            next=_NEXT,
        ) from error
    return _Index(raw, weight_map)


def _shard_names(folder: Path, index: _Index) -> list[str]:
    if index.raw is None:
        return sorted(file.name for file in folder.glob("*.safetensors"))
    names = sorted(set(index.weight_map.values()))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise CheckFailed(
            "models.missing-shard",
            expected=f"{len(names)} shards that {INDEX_FILE} names",
            found=f"{len(missing)} missing: {', '.join(missing[:5])}",
            where=str(folder),
            next=_NEXT,
        )
    return names


def _read_header(shard: Path) -> bytes:
    try:
        return read_header_bytes(shard)
    except (OSError, ValueError) as error:
        raise _broken_shard(shard, str(error)) from error


def _broken_shard(shard: Path, found: str) -> CheckFailed:
    return CheckFailed(
        "models.broken-shard",
        expected="a safetensors file with a readable header",
        found=found,
        where=str(shard),
        next=_NEXT,
    )


def _tensors(shard: Path) -> list[str]:
    """Return a shard's tensor names, after holding its header against its size."""
    raw = _read_header(shard)
    try:
        header = json.loads(raw)
        header.pop("__metadata__", None)
        end = 0
        for name, entry in header.items():
            begin, stop = entry["data_offsets"]
            bits = _BITS.get(entry["dtype"])
            if bits and 8 * (stop - begin) != bits * math.prod(entry["shape"]):
                raise ValueError(f"{name}: its extent does not fit its shape and dtype")
            end = max(end, stop)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _broken_shard(shard, f"{type(error).__name__}: {error}") from error
    expected = 8 + len(raw) + end
    found = shard.stat().st_size
    if found != expected:
        raise CheckFailed(
            "models.cut-shard",
            expected=f"{expected} bytes, by its header",
            found=f"{found} bytes",
            where=str(shard),
            next=_NEXT,
        )
    return list(header)


def _compare(folder: Path, weight_map: dict[str, str], held: dict[str, str]) -> None:
    for name, shard in weight_map.items():
        if held.get(name) != shard:
            found = f"in {held[name]}" if name in held else "in no shard"
            break
    else:
        extra = sorted(held.keys() - weight_map.keys())
        if not extra:
            return
        name, shard, found = extra[0], "the index", f"in {held[extra[0]]} alone"
    raise CheckFailed(
        "models.index-differs",
        expected=f"{name} in {shard}",
        found=found,
        where=str(folder / INDEX_FILE),
        next=_NEXT,
    )
