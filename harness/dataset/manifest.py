"""The manifest of a dataset: one JSON line for each published sample."""

from __future__ import annotations

import builtins
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MANIFEST = "manifest.jsonl"
_FIELDS: dict[str, type | tuple[type, ...]] = {
    "id": str,
    "index": int,
    "file": str,
    "tokens": int,
    "checksum": str,
    "bytes": int,
    "loss_mask": (str, type(None)),
    "dtype": str,
}
_DIGEST = re.compile(r"blake3:[0-9a-f]{64}\Z")


def sample_name(index: int) -> str:
    """Return the file name of a sample, as speculators 0.9 looks for it: by dataset row."""
    return f"hs_{index}.safetensors"


@dataclass(frozen=True)
class ManifestLine:
    """What the manifest says of one sample.

    Attributes:
        id: The user's name for the prompt.
        index: Row of the prompt in the set and in the Arrow folder.
        file: Always ``hs_<index>.safetensors``; a line that names another file is refused,
            so no manifest can point outside its folder.
        tokens: Rows of the sample.
        checksum: ``blake3:<hex>`` of the whole file.
        bytes: Size of the file.
        loss_mask: ``blake3:<hex>`` over the prompt's loss mask (uint8, one byte a token); the
            mask itself is row ``index`` of the Arrow folder. None where the prompt had none
            (the Arrow row then holds ones).
        dtype: ``float32``, ``bfloat16`` or ``float16``.
    """

    id: str
    index: int
    file: str
    tokens: int
    checksum: str
    bytes: int
    loss_mask: str | None
    dtype: str

    def encode(self) -> builtins.bytes:
        """Return the line as it stands in the manifest, with its newline."""
        text = json.dumps(asdict(self), ensure_ascii=True, separators=(", ", ": "))
        return text.encode() + b"\n"


def parse_line(data: bytes) -> ManifestLine:
    """Read one manifest line (without its newline).

    Raises:
        ValueError: The line is broken, has other fields, or names a file it may not name.
    """
    row: Any = json.loads(data)
    if not isinstance(row, dict) or row.keys() != _FIELDS.keys():
        found = sorted(row) if isinstance(row, dict) else type(row).__name__
        raise ValueError(f"expected the fields {sorted(_FIELDS)}, found {found}")
    for name, kind in _FIELDS.items():
        if isinstance(row[name], bool) or not isinstance(row[name], kind):
            raise ValueError(f"{name} is {row[name]!r}")
    line = ManifestLine(**row)
    if line.index < 0 or line.file != sample_name(line.index):
        raise ValueError(f"index {line.index} with the file {line.file!r}")
    if not _DIGEST.match(line.checksum) or (line.loss_mask and not _DIGEST.match(line.loss_mask)):
        raise ValueError("a checksum that is not blake3:<64 hex digits>")
    if line.tokens < 1 or line.bytes < 1:
        raise ValueError(f"{line.tokens} tokens in {line.bytes} bytes")
    return line


@dataclass(frozen=True)
class ManifestText:
    """A manifest as read: what could be understood and what could not.

    Attributes:
        lines: The lines that parse, in file order.
        broken: ``(line number, reason)`` of those that do not. A last line without its
            newline is broken, even where it parses: its write did not end.
        data: The bytes as they were read.
    """

    lines: tuple[ManifestLine, ...]
    broken: tuple[tuple[int, str], ...]
    data: bytes


def read_manifest(folder: Path) -> ManifestText:
    """Read the manifest of a folder; a missing one reads as empty.

    Raises:
        OSError: It is there and cannot be read.
    """
    try:
        data = (folder / MANIFEST).read_bytes()
    except FileNotFoundError:
        data = b""
    lines: list[ManifestLine] = []
    broken: list[tuple[int, str]] = []
    *whole, tail = data.split(b"\n")
    for number, text in enumerate(whole, start=1):
        try:
            lines.append(parse_line(text))
        except (ValueError, RecursionError) as error:
            broken.append((number, str(error)))
    if tail:
        broken.append((len(whole) + 1, "the line was cut short"))
    return ManifestText(tuple(lines), tuple(broken), data)
