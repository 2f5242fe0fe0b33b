"""What a run brings back: one ``bundle.tar.gz``, whole, and never over its limit."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

LIMIT = 16 << 20
# The end of a log says why something ended.
LOG_KEPT = 200_000
_OUTPUT_KEPT = 4 << 20
# These are what the run was made for: cut last.
_WHOLE = ("evidence.json", "machine.json")


def cut(text: bytes, kept: int) -> bytes:
    """Return the last ``kept`` bytes from the start of a line, with a note of what is missing."""
    if len(text) <= kept:
        return text
    end = text[len(text) - kept :]
    end = end[end.find(b"\n") + 1 :]
    return b"[%d bytes left out]\n" % (len(text) - len(end)) + end


def logs(folder: Path) -> dict[str, bytes]:
    """Return the end of every engine's log under a session's folder, by its path there."""
    # pytest's links to the newest folder of each test are not followed.
    found = sorted(path for path in folder.rglob("engine.log") if path.is_file())
    return {path.relative_to(folder).as_posix(): cut(path.read_bytes(), LOG_KEPT) for path in found}


def write(target: Path, files: Mapping[str, bytes], limit: int = LIMIT) -> int:
    """Write the bundle in one step; return its size in bytes.

    Where it would be over ``limit``, outputs and logs are cut from the front, further and
    further; then the report goes.
    """
    kept = _OUTPUT_KEPT
    data = _pack({name: _fit(name, text, kept) for name, text in files.items()})
    while len(data) > limit and kept:
        kept //= 2
        data = _pack({name: _fit(name, text, kept) for name, text in files.items()})
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_name(f".{target.name}.part")
    try:
        scratch.write_bytes(data)
        scratch.replace(target)
    finally:
        scratch.unlink(missing_ok=True)
    return len(data)


def _fit(name: str, text: bytes, kept: int) -> bytes:
    if name in _WHOLE:
        return text
    if name.endswith(".xml"):  # half of it is no XML
        return text if len(text) <= 2 * kept else b"<testsuites/>\n"
    return cut(text, kept)


def _pack(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for name in sorted(files):
            info = tarfile.TarInfo(f"bundle/{name}")
            info.size, info.mode = len(files[name]), 0o644
            tar.addfile(info, io.BytesIO(files[name]))
    return buffer.getvalue()
