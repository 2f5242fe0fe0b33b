"""The Python files of a wheel, found in its directory without a look at all the others.

Of 3,300 entries of a wheel 2,000 are of the package and 100 are read: ``zipfile`` makes an object
of each, which takes longer than to read them. Whatever is not plain is left to ``zipfile``.
"""

from __future__ import annotations

import struct
import zlib
from typing import BinaryIO

_END = struct.Struct("<4s4H2LH")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_LONGEST_END = 65_557
_STORED, _DEFLATED = 0, 8
_ENCRYPTED = 0x1
_WIDE = 0xFFFFFFFF
_HARMLESS = 16 << 10
"""Bytes that unpack to a thousand times as many at most: no bomb."""

Place = tuple[int, int, int, int, int]
"""Method, checksum, size packed and unpacked, and where it begins."""


def places(file: BinaryIO, top: bytes) -> dict[str, Place] | None:
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


def _entries(data: bytes, count: int, top: bytes) -> dict[str, Place] | None:
    found: dict[str, Place] = {}
    place = 0
    unpack, fixed = _ENTRY.unpack_from, _ENTRY.size
    for _ in range(count):
        if place + fixed > len(data):
            return None
        (
            mark,
            _,
            _,
            flags,
            method,
            _,
            _,
            check,
            packed,
            size,
            named,
            extra,
            told,
            _,
            _,
            _,
            begin,
        ) = unpack(data, place)
        name = data[place + fixed : place + fixed + named]
        place += fixed + named + extra + told
        if mark != b"PK\x01\x02":
            return None
        if not ((name.startswith(top) and name.endswith(b".py")) or _is_metadata(name)):
            continue
        odd = flags & _ENCRYPTED or method not in (_STORED, _DEFLATED) or not name.isascii()
        if odd or _WIDE in (packed, size, begin):
            return None
        found[name.decode()] = (method, check, packed, size, begin)
    return found


def _is_metadata(name: bytes) -> bool:
    return name.endswith(b".dist-info/METADATA") and name.count(b"/") == 1


def content(file: BinaryIO, place: Place) -> bytes | None:
    """Return what an entry holds; None where it is not as the directory says."""
    method, check, packed, size, begin = place
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
