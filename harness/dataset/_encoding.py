"""What a prompts file that is no plain UTF-8 text looks like, and the command that makes it so."""

from __future__ import annotations

import shlex
from pathlib import Path

from harness.errors import UsageError

# First bytes, what they are, the command that unpacks to stdout, the usual suffix.
_PACKED = (
    (b"\x1f\x8b", "gzip", "gzip -dc", ".gz"),
    (b"\x28\xb5\x2f\xfd", "zstd", "zstd -dc", ".zst"),
    (b"\xfd7zXZ\x00", "xz", "xz -dc", ".xz"),
    (b"BZh", "bzip2", "bzip2 -dc", ".bz2"),
)
LOOK = 8
"""Bytes that :func:`refuse_encoded` wants to see."""


def refuse_encoded(path: Path, head: bytes) -> None:
    """Refuse a file that is packed or UTF-16, by its first bytes.

    Raises:
        UsageError: ``prompts.compressed`` or ``prompts.utf-16``, with the command to run.
    """
    for magic, name, unpack, suffix in _PACKED:
        if head.startswith(magic):
            target = path.with_suffix("") if path.suffix == suffix else _beside(path, "unpacked")
            _refuse("compressed", f"a {name} file", path, unpack, target)
    if _is_utf16(head):
        iconv = f"iconv -f UTF-16{'' if head[:2] in _MARKS else _order(head)} -t UTF-8"
        _refuse("utf-16", "UTF-16 text", path, iconv, _beside(path, "utf8"))


_MARKS = (b"\xff\xfe", b"\xfe\xff")


def _is_utf16(head: bytes) -> bool:
    # Without a mark: a line of JSON begins with a brace, whose other byte is then zero.
    return head[:2] in (*_MARKS, b"{\0", b"\0{")


def _order(head: bytes) -> str:
    return "BE" if head[0] == 0 else "LE"


def _beside(path: Path, what: str) -> Path:
    return path.with_name(f"{path.stem}.{what}{path.suffix}")


def _refuse(id: str, found: str, path: Path, command: str, target: Path) -> None:
    source, made = shlex.quote(str(path)), shlex.quote(str(target))
    raise UsageError(
        f"prompts.{id}",
        expected="plain JSONL in UTF-8",
        found=f"what looks like {found}",
        where=str(path),
        next=f"{command} {source} > {made}, then --prompts {made}",
    )
