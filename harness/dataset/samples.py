"""Samples out: reads one ``hs_<i>.safetensors`` into numpy, without pickle and without torch.

Layout of a file, as speculators 0.9 reads it: ``hidden_states`` ``[tokens, columns, hidden]``
and ``token_ids`` int64 ``[tokens]``. The safetensors form: eight bytes with the header's length
(little endian), a JSON header, then the tensors without gaps.
"""

from __future__ import annotations

import errno
import importlib
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from harness.dataset._files import digest, file_checksum
from harness.errors import CheckFailed

__all__ = ["Sample", "file_checksum", "read_sample"]

_HEADER_LIMIT = 1 << 20
# bfloat16 has no numpy type: its bits are held as uint16 and its name is kept beside them.
_FLOATS: dict[str, tuple[str, str]] = {
    "F32": ("float32", "<f4"),
    "BF16": ("bfloat16", "<u2"),
    "F16": ("float16", "<f2"),
}
_SIZES = {"F32": 4, "BF16": 2, "F16": 2, "I64": 8}


@dataclass(frozen=True, eq=False)
class Sample:
    """One sample in memory.

    Attributes:
        path: The file it came from.
        hidden: ``[tokens, columns, hidden]`` as float32, float16, or uint16 that holds the
            bits of bfloat16.
        dtype: ``float32``, ``float16`` or ``bfloat16``; the meaning of ``hidden``.
        token_ids: int64 ``[tokens]``.
        bytes: Size of the file.
        checksum: ``blake3:<hex>`` of the file, or None where it was not asked for.
    """

    path: Path
    hidden: npt.NDArray[Any]
    dtype: str
    token_ids: npt.NDArray[np.int64]
    bytes: int
    checksum: str | None

    def to_float32(self) -> npt.NDArray[np.float32]:
        """Return ``hidden`` as float32; exact for every dtype a sample may have."""
        if self.dtype == "bfloat16":
            # bfloat16 is the upper half of a float32.
            return (self.hidden.astype(np.uint32) << 16).view(np.float32)
        return self.hidden.astype(np.float32, copy=False)

    def to_torch(self) -> Any:
        """Return ``hidden`` as a torch tensor of its own dtype, sharing memory.

        Torch is imported here and only here: whoever asks for a tensor has it already.
        """
        torch = importlib.import_module("torch")
        if self.dtype == "bfloat16":
            return torch.from_numpy(self.hidden.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(self.hidden)


def read_sample(path: Path | str, *, checksum: bool = False) -> Sample:
    """Read a sample; the file is read once, also when its checksum is wanted.

    Args:
        path: The file.
        checksum: Whether to compute the checksum of the bytes that were read.

    Raises:
        CheckFailed: ``sample.missing``, ``sample.unreadable``, or ``sample.broken`` where the
            header is cut short, lies about the data, or describes other tensors.
    """
    path = Path(path)
    try:
        data = _read(path)
    except FileNotFoundError:
        raise CheckFailed(
            "sample.missing",
            expected="a sample file",
            found="no such file",
            where=str(path),
            next="run the extraction again to write it",
        ) from None
    except OSError as error:
        raise CheckFailed(
            "sample.unreadable",
            expected="a readable sample file",
            found=error.strerror or str(error),
            where=str(path),
            next="check the disk and the permissions",
        ) from None
    entries, start = _header(path, data)
    hidden, dtype = _hidden(path, data, entries["hidden_states"], start)
    ids = entries["token_ids"]
    if ids["dtype"] != "I64" or len(ids["shape"]) != 1:
        _broken(path, "token_ids of I64 with one axis", f"{ids['dtype']} {ids['shape']}")
    token_ids = _array(data, "<i8", ids, start)
    return Sample(path, hidden, dtype, token_ids, len(data), digest(data) if checksum else None)


def _read(path: Path) -> bytearray:
    if not path.is_file() and path.exists():
        # A pipe would be waited for until somebody writes to it.
        raise OSError(errno.EINVAL, "not a regular file")
    with path.open("rb", buffering=0) as file:
        data = bytearray(path.stat().st_size)
        view, filled = memoryview(data), 0
        while filled < len(data) and (count := file.readinto(view[filled:])):
            filled += count
        view.release()
        del data[filled:]
    return data


def _header(path: Path, data: bytearray) -> tuple[dict[str, dict[str, Any]], int]:
    if len(data) < 8:
        _broken(path, "at least the 8 bytes of the header's length", f"{len(data)} bytes")
    (length,) = struct.unpack_from("<Q", data)
    if length > min(_HEADER_LIMIT, len(data) - 8):
        _broken(
            path,
            f"a header of at most {min(_HEADER_LIMIT, len(data) - 8)} bytes",
            f"a length field of {length}",
        )
    try:
        header = json.loads(bytes(data[8 : 8 + length]))
    except (ValueError, RecursionError) as error:
        _broken(path, "a JSON header", str(error))
    if not isinstance(header, dict):
        _broken(path, "a JSON object as header", type(header).__name__)
    header.pop("__metadata__", None)
    if header.keys() != {"hidden_states", "token_ids"}:
        _broken(path, "the tensors hidden_states and token_ids", str(sorted(header)))
    end = 0
    for name, entry in sorted(header.items(), key=_offset):
        end = _check_entry(path, name, entry, end)
    if end != len(data) - 8 - length:
        _broken(path, f"{end} bytes of data", f"{len(data) - 8 - length} bytes")
    return header, 8 + length


def _offset(item: tuple[str, Any]) -> int:
    try:
        return int(item[1]["data_offsets"][0])
    except (TypeError, KeyError, IndexError, ValueError, OverflowError):
        return -1


def _check_entry(path: Path, name: str, entry: Any, start: int) -> int:
    """Check one tensor's entry against where the one before it ended; return its end."""
    whole = isinstance(entry, Mapping) and entry.keys() == {"dtype", "shape", "data_offsets"}
    if not whole or not _naturals(entry["shape"]) or not _naturals(entry["data_offsets"]):
        _broken(path, f"{name} with dtype, shape and data_offsets", repr(entry)[:120])
    if not isinstance(entry["dtype"], str) or entry["dtype"] not in _SIZES:
        _broken(path, f"{name} of {', '.join(_SIZES)}", repr(entry["dtype"])[:40])
    size: int = math.prod(entry["shape"]) * _SIZES[entry["dtype"]]
    if entry["data_offsets"] != [start, start + size]:
        _broken(path, f"{name} at {[start, start + size]}", str(entry["data_offsets"]))
    return start + size


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _hidden(
    path: Path, data: bytearray, entry: Mapping[str, Any], start: int
) -> tuple[npt.NDArray[Any], str]:
    if entry["dtype"] not in _FLOATS or len(entry["shape"]) != 3:
        _broken(
            path,
            "hidden_states of F32, BF16 or F16 with three axes (tokens, columns, hidden)",
            f"{entry['dtype']} {entry['shape']}",
        )
    name, code = _FLOATS[entry["dtype"]]
    return _array(data, code, entry, start), name


def _array(data: bytearray, code: str, entry: Mapping[str, Any], start: int) -> npt.NDArray[Any]:
    first, last = entry["data_offsets"]
    flat = np.frombuffer(data, dtype=np.uint8, count=last - first, offset=start + first)
    if flat.ctypes.data % np.dtype(code).itemsize:
        flat = flat.copy()  # a header that is not padded leaves the tensors unaligned
    return flat.view(code).reshape(entry["shape"])


def _broken(path: Path, expected: str, found: str) -> NoReturn:
    raise CheckFailed(
        "sample.broken",
        expected=expected,
        found=found,
        where=str(path),
        next="delete this file and run the extraction again",
    )
