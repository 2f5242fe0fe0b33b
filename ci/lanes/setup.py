"""Make the environment of one lane: ``.venv/LANE``, from the pins in ``ci/lanes/LANE.txt``.

    python3 ci/lanes/setup.py gen2

A stamp in the environment says what it was made from. While that has not changed, this
returns at once; when it has, or when an earlier run was cut short, the environment is made
anew. An environment without a stamp was made by somebody else and is left alone.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import cuda_stubs
import numa_stub
from refusals import (
    ROOM,
    ROOM_FOR_WHEELS,
    LaneError,
    check_python,
    check_room,
    explain,
    explain_os_error,
    find_compiler,
)

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parent.parent
_STAMP = "harness-lane.json"
_PIP = (
    *("-m", "pip", "install", "--no-deps", "--no-compile"),
    *("--no-input", "--disable-pip-version-check"),
)
# The imports that a run needs, kernels included. Python keeps the bytecode of all it imports
# here, which costs a fifth of compiling every file that the wheels hold.
_TRIAL = """
import torch
assert not torch.cuda.is_available(), "torch sees a GPU"
assert float((torch.ones(8, 8) @ torch.ones(8, 8)).sum()) == 512
from vllm import LLM
import vllm._custom_ops
assert hasattr(torch.ops._C, "silu_and_mul"), "vLLM's kernels did not load"
"""


@dataclass(frozen=True)
class Lane:
    """One environment: its name and where everything of it lies."""

    name: str
    root: Path

    @property
    def pins(self) -> Path:
        return self.root / "ci" / "lanes" / f"{self.name}.txt"

    @property
    def env(self) -> Path:
        return self.root / ".venv" / self.name

    @property
    def python(self) -> Path:
        return self.env / "bin" / "python"

    @property
    def log(self) -> Path:
        return self.root / ".venv" / f"{self.name}.log"

    @property
    def site_packages(self) -> Path:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.env / "lib" / version / "site-packages"


def fingerprint(files: Sequence[Path], facts: Mapping[str, str]) -> str:
    """Return one hash over the files' names and bytes and over the facts."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for path in files:
        digest.update(f"\0{path.name}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def wanted_stamp(lane: Lane) -> dict[str, str]:
    """Return the stamp of an environment made now: what is installed, and this checkout."""
    facts = {
        "root": str(lane.root),
        "python": platform.python_version(),
        "prefix": sys.base_prefix,
        "machine": platform.machine(),
    }
    scripts = sorted(_HERE.glob("*.py"))
    project = [lane.root / "pyproject.toml", lane.root / "harness" / "__init__.py"]
    return {
        "environment": fingerprint([lane.pins, *scripts], facts),
        "project": fingerprint(project, {}),
    }


def read_stamp(env: Path) -> dict[str, str] | None:
    """Return the stamp of an environment: None without one, empty when it was cut short."""
    try:
        stamp = json.loads((env / _STAMP).read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return stamp if isinstance(stamp, dict) else {}


def write_stamp(env: Path, stamp: Mapping[str, str]) -> None:
    """Replace the stamp in one step, so that a reader never sees half of it."""
    scratch = env / f"{_STAMP}.part"
    scratch.write_text(json.dumps(stamp, indent=1) + "\n")
    scratch.replace(env / _STAMP)


def pip_requirement(pins: str) -> str:
    """Return the pin of pip itself."""
    return next(line for line in pins.splitlines() if line.startswith("pip=="))


def _say(text: str) -> None:
    print(f"set-up: {text}", file=sys.stderr, flush=True)


def _run(lane: Lane, *command: str | Path) -> None:
    """Run one step with its output in the log; without bytecode switched off."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [str(part) for part in command],
        cwd=lane.root,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    with lane.log.open("a") as log:
        log.write(f"$ {' '.join(str(part) for part in command)}\n{done.stdout}\n")
    if done.returncode:
        raise explain(" ".join(str(part) for part in command[:4]), done.stdout, lane.log)


def _make_venv(lane: Lane) -> None:
    try:
        _run(lane, sys.executable, "-m", "venv", lane.env)
    except LaneError as failure:
        if failure.id != "lane.failed":
            raise
        raise LaneError(
            "lane.no-venv",
            expected="a Python with the modules venv and ensurepip",
            found=f"`{sys.executable} -m venv` failed, see {lane.log}",
            where=sys.executable,
            next="install them (on Debian: apt-get install python3-venv), run it again",
        ) from None


def _install_pins(lane: Lane) -> None:
    _run(lane, lane.python, *_PIP, pip_requirement(lane.pins.read_text()))
    _run(lane, lane.python, *_PIP, "-r", lane.pins)


def _install_project(lane: Lane) -> None:
    _run(lane, lane.python, *_PIP, "--no-build-isolation", "--no-index", "-e", lane.root)


def _build_stubs(lane: Lane) -> None:
    torch_lib = lane.site_packages / "torch" / "lib"
    try:
        if cuda_stubs.needs_stubs(torch_lib):
            compiler = find_compiler("torch came as its CUDA build, which needs stand-ins")
            built = cuda_stubs.build(torch_lib, compiler)
            _say(f"torch came as its CUDA build: {len(built)} stand-ins for CUDA libraries")
        if numa_stub.needs_stub():
            numa_stub.build(lane.site_packages, find_compiler("libnuma needs a stand-in"))
            _say("no libnuma here: a stand-in for it")
    except subprocess.CalledProcessError as failure:
        raise explain(" ".join(failure.cmd[:3]), failure.stderr, lane.log) from None


def make(lane: Lane) -> None:
    """Make the environment, or leave it as it is when its stamp still holds.

    Raises:
        LaneError: It cannot be made, with what to do about it.
    """
    stamp, wanted = read_stamp(lane.env), wanted_stamp(lane)
    if stamp and not os.access(lane.python, os.X_OK):
        stamp = {}
    if stamp == wanted:
        return
    start = time.monotonic()
    if stamp is None and lane.env.exists():
        raise LaneError(
            "lane.not-ours",
            expected="an environment made by this script, or none",
            found=f"a folder without {_STAMP}",
            where=lane.env,
            next=f"remove or rename it, run it again: rm -r {lane.env}",
        )
    if not stamp or stamp.get("environment") != wanted["environment"]:
        if stamp is not None:
            _say(f"{lane.env} is out of date or half-finished: making it anew")
            shutil.rmtree(lane.env)
        check_room(lane.env.parent, ROOM)
        check_room(Path(tempfile.gettempdir()), ROOM_FOR_WHEELS)
        lane.env.mkdir()
        write_stamp(lane.env, {})
        lane.log.write_text("")
        _say(f"making {lane.env} (some minutes, 3 GB; log: {lane.log})")
        _make_venv(lane)
        _install_pins(lane)
        _say(f"packages installed after {time.monotonic() - start:.0f} s")
        _build_stubs(lane)
        _run(lane, lane.python, "-c", _TRIAL)
    # From here on only this checkout is still to be installed.
    write_stamp(lane.env, {"environment": wanted["environment"]})
    _install_project(lane)
    write_stamp(lane.env, wanted)
    _say(f"{lane.env} is ready after {time.monotonic() - start:.0f} s")


@contextlib.contextmanager
def alone(lane: Lane) -> Iterator[None]:
    """Hold the lane's lock: a second set-up waits for the first."""
    lane.env.parent.mkdir(exist_ok=True)
    with (lane.env.parent / f"{lane.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another set-up of this lane is at work: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    lanes = sorted(path.stem for path in _HERE.glob("*.txt"))
    parser = argparse.ArgumentParser(description="Make the environment of one lane.")
    parser.add_argument("lane", choices=lanes)
    lane = Lane(parser.parse_args(arguments).lane, _ROOT)
    try:
        check_python(tuple(sys.version_info[:3]))
        with alone(lane):
            make(lane)
    except LaneError as failure:
        print(failure, file=sys.stderr)
        return 3
    except OSError as error:
        print(explain_os_error(error, lane.env), file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        _say("interrupted; run it again to make the environment anew")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
