"""The pack on the GPU box: unpacked once, found again by the archive's hash, put on the path."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import lzma
import os
import shlex
import shutil
import subprocess
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from failures import GIB, GpuError, check_room

_FACTS = "harness-pack.json"
_ROOM = GIB // 2


def default_home() -> Path:
    """Return the folder of unpacked packs, the user's own."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "harness" / "gpu"


def unpack(archive: Path, home: Path) -> Path:
    """Return the folder of an unpacked archive, unpacking it where that was not done yet.

    The folder appears whole or not at all; a second caller waits for the first.

    Raises:
        GpuError: The archive is missing or cut, or the disk is too full.
    """
    name = hash_of(archive)[:24]
    home.mkdir(parents=True, exist_ok=True)
    site = home / name
    with (home / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if site.is_dir():
            return site
        scratch = home / f"{name}.part"
        # Left by a run that was killed; whoever made it no longer holds the lock.
        shutil.rmtree(scratch, ignore_errors=True)
        check_room(home, _ROOM)
        try:
            with tarfile.open(archive, mode="r|xz") as tar:
                tar.extractall(scratch, filter="data")
            scratch.rename(site)
        except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
            raise GpuError(
                "gpu.cut-archive",
                expected="a whole archive that ci/gpu/pack.py made",
                found=f"{error} ({archive.stat().st_size} bytes)",
                where=archive,
                next="copy it again, or make it again",
            ) from None
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return site


def hash_of(archive: Path) -> str:
    """Return the SHA-256 of an archive.

    Raises:
        GpuError: There is none.
    """
    try:
        with archive.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise GpuError(
            "gpu.no-archive",
            expected="the archive that ci/gpu/pack.py made",
            found="no such file",
            where=archive,
            next="make it with `python3 ci/gpu/pack.py OUT.tar.xz` and copy it here",
        ) from None


def facts(site: Path) -> dict[str, Any]:
    """Return what the pack says of itself: architecture, Python, pins; empty where it does not."""
    try:
        found = json.loads((site / _FACTS).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def check_python(pack: Mapping[str, Any], version: str, where: object) -> None:
    """Refuse an interpreter for which the pack's libraries were not made.

    Raises:
        GpuError: Its version is another one.
    """
    wanted = pack.get("python")
    if wanted and version and version.split(".")[:2] != str(wanted).split("."):
        raise GpuError(
            "gpu.other-python",
            expected=f"Python {wanted}, for which the pack was made",
            found=f"Python {version}",
            where=where,
            next="name that one with --python",
        )


def compile_all(python: Path, site: Path, until: float) -> None:
    """Compile the pack's sources on all cores, or each process of an engine does it anew."""
    command = [str(python), "-m", "compileall", "-q", "-j", "0", str(site)]
    seconds = max(1.0, until - time.monotonic())
    # Not every file of every package is Python of this version: what fails is imported by nobody.
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(command, capture_output=True, check=False, timeout=seconds)


def write_wrapper(target: Path, python: Path, site: Path) -> Path:
    """Write an interpreter that finds the pack: what ``--hs-python`` is given."""
    target.write_text(
        "#!/bin/sh\n"
        f"PYTHONPATH={shlex.quote(str(site))}${{PYTHONPATH:+:$PYTHONPATH}}\n"
        "export PYTHONPATH\n"
        f'exec {shlex.quote(str(python))} "$@"\n'
    )
    target.chmod(0o755)
    return target
