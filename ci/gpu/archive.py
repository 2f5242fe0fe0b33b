"""One folder as one ``.tar.xz``: the same files give the same bytes, and it appears whole."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path
from typing import IO

from failures import GpuError, last_lines

# Some tools refuse times before 1980.
_TIME = 315_532_800


def write(folder: Path, target: Path, xz: str) -> int:
    """Pack ``folder`` into ``target``; return its size in bytes.

    Order, times, owners and modes are fixed, and xz runs with one thread, since its output
    depends on their number.

    Raises:
        GpuError: xz failed; ``target`` is as it was.
    """
    scratch = target.with_name(f".{target.name}.part")
    try:
        with scratch.open("wb") as sink:
            packer = subprocess.Popen(
                [xz, "-T1", "-6", "-c"], stdin=subprocess.PIPE, stdout=sink, stderr=subprocess.PIPE
            )
            with packer:
                assert packer.stdin is not None
                assert packer.stderr is not None
                broken = False
                try:
                    _write_tar(folder, packer.stdin)
                    packer.stdin.close()
                except BrokenPipeError:
                    broken = True
                except BaseException:
                    packer.kill()
                    raise
                words = packer.stderr.read().decode(errors="replace")
            if packer.returncode or broken:
                raise GpuError(
                    "gpu.tool-failed",
                    expected="xz to end well",
                    found=f"exit code {packer.returncode}: {last_lines(words)}",
                    where=target,
                    next="see that the disk has room, run it again",
                )
        scratch.replace(target)
    finally:
        scratch.unlink(missing_ok=True)
    return target.stat().st_size


def _write_tar(folder: Path, sink: IO[bytes]) -> None:
    with tarfile.open(fileobj=sink, mode="w|", format=tarfile.GNU_FORMAT) as tar:
        for path in sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).parts):
            info = tarfile.TarInfo(path.relative_to(folder).as_posix())
            info.mtime = _TIME
            if path.is_dir():
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(info)
            else:
                info.size, info.mode = path.stat().st_size, 0o644
                with path.open("rb") as source:
                    tar.addfile(info, source)
