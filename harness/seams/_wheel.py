"""The Python files of a wheel, found in its directory without a look at all the others.

Of 3,300 entries of a wheel 2,000 are of the package and 100 are read: ``zipfile`` makes an object
of each, which takes longer than to read them. Whatever is not plain is left to ``zipfile``.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import BinaryIO

_END = struct.Struct("<4s4H2LH")
_MARK = b"PK\x01\x02"
_ENTRY = struct.Struct("<4s4x2H12xL3H")
"""Mark, flags, method, size unpacked, lengths of the name and of what follows it."""
_PLACE = struct.Struct("<10xH4x3L14xL")
_FIXED = _PLACE.size
_LOCAL = struct.Struct("<4s5H3L2H")
_LONGEST_END = 65_557
_STORED, _DEFLATED = _METHODS = 0, 8
_ENCRYPTED = 0x1
_WIDE = 0xFFFFFFFF
_HARMLESS = 16 << 10
"""Bytes that unpack to a thousand times as many at most: no bomb."""

Place = tuple[int, int, int, int, int]
"""Method, checksum, size packed and unpacked, and where it begins."""


class Places(Mapping[str, Place]):
    """Where entries lie, told when one is asked for.

    Attributes:
        sizes: Name -> bytes that it unpacks to.
    """

    def __init__(self, data: bytes, entries: dict[str, int], sizes: dict[str, int]) -> None:
        self._data = data
        self._entries = entries
        self.sizes = sizes

    def __getitem__(self, name: str) -> Place:
        """Return where an entry lies."""
        place: Place = _PLACE.unpack_from(self._data, self._entries[name])
        return place

    def __iter__(self) -> Iterator[str]:
        """Yield each name."""
        return iter(self._entries)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._entries)


def places(file: BinaryIO, top: bytes) -> Places | None:
    """Return where the ``*.py`` of a folder and the ``*.dist-info/METADATA`` of a wheel lie.

    Args:
        file: The wheel.
        top: Name of the folder with its slash.

    Returns:
        None where the directory is not a plain one: 64 bits, encrypted, in more than one part.
    """
    size = file.seek(0, 2)
    file.seek(max(0, size - _LONGEST_END))
    tail = file.read()
    place = tail.rfind(b"PK\x05\x06")
    if place < 0 or len(tail) - place < _END.size:
        return None
    _, disk, first, here, count, length, begin, comment = _END.unpack_from(tail, place)
    start_of_end = size - len(tail) + place
    if disk or first or here != count or begin + length != start_of_end:
        return None
    if place + _END.size + comment != len(tail) or count == 0xFFFF or _WIDE in (begin, length):
        return None
    file.seek(begin)
    return _entries(file.read(length), count, top)


def _entries(data: bytes, count: int, top: bytes) -> Places | None:
    entries: dict[str, int] = {}
    sizes: dict[str, int] = {}
    unpack, last, end = _ENTRY.unpack_from, len(data) - _FIXED, 0
    for _ in range(count):
        if end > last:
            return None
        mark, flags, method, size, named, extra, told = unpack(data, end)
        entry, begin = end, end + _FIXED
        end = begin + named + extra + told
        if mark != _MARK:
            return None
        name = data[begin : begin + named]
        if name.endswith(b".py"):
            if not name.startswith(top):
                continue
        elif not name.endswith(b".dist-info/METADATA") or name.count(b"/") != 1:
            continue
        if flags & _ENCRYPTED or method not in _METHODS or size == _WIDE or not name.isascii():
            return None
        path = name.decode()
        entries[path], sizes[path] = entry, size
    return Places(data, entries, sizes)


def content(file: BinaryIO, place: Place) -> bytes | None:
    """Return what an entry holds; None where it is not as the directory says."""
    method, check, packed, size, begin = place
    if _WIDE in (packed, begin):
        return None
    file.seek(begin)
    head = file.read(_LOCAL.size)
    if len(head) < _LOCAL.size or not head.startswith(b"PK\x03\x04"):
        return None
    named, extra = _LOCAL.unpack(head)[-2:]
    file.seek(named + extra, 1)
    data = file.read(packed)
    try:
        if method == _DEFLATED and packed <= _HARMLESS:
            data = zlib.decompress(data, -15, size or 1)
        elif method == _DEFLATED:
            # No more than was told: a bomb tells less than it holds. It takes three times as long.
            data = zlib.decompressobj(-15).decompress(data, size + 1)
    except zlib.error:
        return None
    return data if len(data) == size and zlib.crc32(data) == check else None
