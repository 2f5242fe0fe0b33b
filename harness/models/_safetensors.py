"""Writing and reading headers of safetensors files, so that their bytes are ours to fix.

The library orders tensors as its version sees fit; a checkpoint that must be byte-equal in
every environment cannot depend on that. The format is small: eight bytes of little-endian
header length, a JSON header padded with spaces, then the tensors' bytes back to back.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_ALIGN = 8
_MAX_HEADER = 100_000_000  # the library's own limit


@dataclass(frozen=True)
class Blob:
    """One tensor, ready to be written.

    Attributes:
        name: Its name in the file.
        dtype: safetensors dtype, such as ``F32``, ``BF16``, ``I32``.
        data: Contiguous little-endian array whose bytes are the tensor's.
    """

    name: str
    dtype: str
    data: npt.NDArray[Any]


def write(path: Path, blobs: Sequence[Blob], metadata: Mapping[str, str]) -> int:
    """Write a safetensors file with the tensors in the order given.

    Args:
        path: File to create.
        blobs: Tensors; names are unique.
        metadata: Texts for the header's ``__metadata__``.

    Returns:
        Bytes of tensor data written (without the header).

    Raises:
        OSError: The file cannot be written.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for blob in blobs:
        header[blob.name] = {
            "dtype": blob.dtype,
            "shape": list(blob.data.shape),
            "data_offsets": [offset, offset + blob.data.nbytes],
        }
        offset += blob.data.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGN)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for blob in blobs:
            file.write(np.ascontiguousarray(blob.data).tobytes())
    return offset


def read_header_bytes(path: Path) -> bytes:
    """Return the raw JSON header of a safetensors file, without reading any tensor.

    Args:
        path: The file.

    Raises:
        ValueError: The file is too short or names an impossible header length.
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            raise ValueError(f"{len(prefix)} bytes, too short for a safetensors header")
        (length,) = struct.unpack("<Q", prefix)
        if length > _MAX_HEADER:
            raise ValueError(f"header length {length}, not a safetensors file")
        header = file.read(length)
    if len(header) < length:
        raise ValueError(f"header cut off after {len(header)} of {length} bytes")
    return header
