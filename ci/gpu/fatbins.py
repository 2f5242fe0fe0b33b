"""The device code inside a shared library: CUDA's fat binaries, read and rewritten in place.

An ELF section ``.nv_fatbin`` holds containers: a header of 16 bytes (magic, version, header size,
size of what follows), then entries, each with a header of its own and a payload: PTX text or an
image for one architecture, compressed or not. The host code finds a container by its address, so
none may move: what is left out becomes zeros behind the last entry, which any compressor removes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

PTX, IMAGE = 1, 2
_MAGIC = 0xBA55ED50
_CONTAINER = struct.Struct("<IHHQ")
# Kind, version, header size, payload size, compressed size; the architecture is further down.
_ENTRY = struct.Struct("<HHIQI")
_ENTRY_ARCH = 28
_ALIGNMENT = 8


class Malformed(ValueError):
    """The file is no 64-bit ELF library, or its fat binaries are not laid out as known."""


@dataclass(frozen=True)
class Entry:
    """One PTX text or image.

    Attributes:
        kind: ``PTX`` or ``IMAGE``.
        arch: Compute capability as CUDA writes it: 90 for ``sm_90``.
        raw: Header and payload, as they stand in the library.
        code: The payload without its padding.
    """

    kind: int
    arch: int
    raw: bytes
    code: bytes


@dataclass(frozen=True)
class Container:
    """One fat binary: where its entries lie in the file, and the entries."""

    header: int
    start: int
    end: int
    entries: tuple[Entry, ...]


def sections(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield where each section with device code begins and ends.

    Raises:
        Malformed: This is no 64-bit ELF file.
    """
    if data[:5] != b"\x7fELF\x02":
        raise Malformed("no 64-bit ELF file")
    try:
        (table,) = struct.unpack_from("<Q", data, 40)
        size, count, names = struct.unpack_from("<HHH", data, 58)
        headers = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
        texts = headers[names][4]
    except (struct.error, IndexError) as error:
        raise Malformed(f"cut section headers: {error}") from None
    for name, _kind, _flags, _address, offset, length in headers:
        if data.startswith(b".nv_fatbin", texts + name):
            if offset + length > len(data):
                raise Malformed(f"a section ends {offset + length - len(data)} bytes too late")
            yield offset, offset + length


def containers(data: bytes) -> Iterator[Container]:
    """Yield every fat binary of a library.

    Raises:
        Malformed: Something ends behind the thing that holds it.
    """
    for begin, section_end in sections(data):
        at = begin
        while at + _CONTAINER.size <= section_end:
            magic, _version, header, size = _CONTAINER.unpack_from(data, at)
            if magic != _MAGIC:
                at += _ALIGNMENT
                continue
            start, end = at + header, at + header + size
            if header < _CONTAINER.size or end > section_end:
                raise Malformed(f"the fat binary at {at} ends behind its section")
            yield Container(at, start, end, tuple(_entries(data, start, end)))
            at = -(-end // _ALIGNMENT) * _ALIGNMENT


def _entries(data: bytes, start: int, end: int) -> Iterator[Entry]:
    at = start
    while at < end:
        if at + _ENTRY_ARCH + 4 > end:
            raise Malformed(f"the entry at {at} is cut")
        kind, _version, header, size, compressed = _ENTRY.unpack_from(data, at)
        (arch,) = struct.unpack_from("<I", data, at + _ENTRY_ARCH)
        payload, after = at + header, at + header + size
        if header < _ENTRY_ARCH + 4 or after > end or compressed > size:
            raise Malformed(f"the entry at {at} ends behind its fat binary")
        code = data[payload : payload + (compressed or size)]
        yield Entry(kind, arch, data[at:after], code)
        at = after


@dataclass(frozen=True)
class Trimmed:
    """What was done to one library: its fat binaries, and bytes of device code."""

    containers: int
    before: int
    after: int


def trim(path: Path, keep: Callable[[tuple[Entry, ...]], bytes]) -> Trimmed:
    """Rewrite a library, so that each fat binary holds only what ``keep`` makes of it.

    Args:
        path: The library; replaced in one step, its size unchanged.
        keep: From the entries of one fat binary to the bytes of those that stay, at least one:
            CUDA refuses an empty fat binary at start, also one that is never used.

    Raises:
        Malformed: The library has no fat binary, or ``keep`` gave none or more than there was.
    """
    source = path.read_bytes()
    data = bytearray(source)
    count = before = after = 0
    for one in containers(source):
        kept, room = keep(one.entries), one.end - one.start
        if not 0 < len(kept) <= room:
            raise Malformed(f"{len(kept)} bytes for the {room} of the fat binary at {one.header}")
        data[one.start : one.end] = kept + bytes(room - len(kept))
        struct.pack_into("<Q", data, one.header + 8, len(kept))
        count, before, after = count + 1, before + room, after + len(kept)
    if not count:
        raise Malformed("no fat binary in it")
    scratch = path.with_name(path.name + ".part")
    scratch.write_bytes(data)
    scratch.chmod(path.stat().st_mode)
    scratch.replace(path)
    return Trimmed(count, before, after)
