"""Make the pack for a GPU box without a package index: vLLM and what it needs, in one archive.

    python3 ci/gpu/pack.py OUT.tar.xz

Downloads the wheels of ci/gpu/wheels.txt, leaves out what the box does not need (device code for
other GPUs above all), and writes the archive that ci/gpu/run.py takes. Some 0.35 GB to fetch, 43 MB
of archive, five minutes; needs c++filt, zstd, xz, and ptxas and fatbinary of CUDA 13.0, no GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import archive
import fatbins
import wheels
from failures import GIB, GpuError, check_room, explain_os_error
from kernels import CHOICES, Choice, stays
from toolbox import Toolbox, find_tools

FACTS = "harness-pack.json"
_PINS = Path(__file__).resolve().parent / "wheels.txt"
_ROOM = 3 * GIB
_ROOM_FOR_ARCHIVE = GIB // 8


def _say(text: str) -> None:
    print(f"pack: {text}", file=sys.stderr, flush=True)


def choose(arch: int) -> Choice:
    """Return what stays for an architecture.

    Raises:
        GpuError: Nobody has chosen for it yet.
    """
    if arch not in CHOICES:
        raise GpuError(
            "gpu.unknown-arch",
            expected="an architecture whose kernels are chosen: " + ", ".join(map(str, CHOICES)),
            found=str(arch),
            where="--arch",
            next="add a Choice to ci/gpu/kernels.py",
        )
    return CHOICES[arch]


def trim(site: Path, choice: Choice, tools: Toolbox) -> None:
    """Cut the device code of each library of the choice.

    Raises:
        GpuError: A library is missing, or is not what the choice was made for.
    """
    for name, rule in choice.trimmed.items():
        try:
            done = fatbins.trim(site / name, rule(tools, choice.arch))
        except (FileNotFoundError, fatbins.Malformed) as error:
            raise GpuError(
                "gpu.other-library",
                expected=f"{name} as vLLM 0.26.0 has it",
                found=str(error),
                where=site / name,
                next="bring ci/gpu/kernels.py in line with the pinned release",
            ) from None
        _say(f"{name}: {done.before >> 10} kB of device code cut to {done.after >> 10} kB")


def make(target: Path, choice: Choice, pins: Sequence[wheels.Pin], folder: Path | None) -> int:
    """Make the archive; return its size in bytes."""
    tools = find_tools()
    target.parent.mkdir(parents=True, exist_ok=True)
    check_room(target.parent, _ROOM_FOR_ARCHIVE)
    with tempfile.TemporaryDirectory(prefix="harness-pack-") as name:
        scratch = Path(name)
        check_room(scratch, _ROOM)
        site = scratch / "site"
        site.mkdir()
        downloads = folder or scratch / "wheels"
        downloads.mkdir(parents=True, exist_ok=True)
        found = wheels.collect(pins, downloads)
        _say(f"{len(found)} wheels, {sum(one.stat().st_size for one in found) >> 20} MiB")
        for wheel in found:
            wheels.unpack(wheel, site, lambda name: stays(name, choice))
        trim(site, choice, tools)
        facts = {"arch": choice.arch, "python": wheels.PYTHON, "pins": sorted(map(str, pins))}
        (site / FACTS).write_text(json.dumps(facts, indent=1) + "\n")
        _say("compressing")
        return archive.write(site, target, tools.programs["xz"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(description="Make the pack for a GPU box.")
    parser.add_argument("out", type=Path, metavar="OUT.tar.xz")
    parser.add_argument("--arch", type=int, default=90, help="compute capability (90: H100, H200)")
    parser.add_argument(
        "--wheels", type=Path, metavar="DIR", help="keep wheels here; those there are not fetched"
    )
    parser.add_argument(
        "--extra",
        action="append",
        default=[],
        metavar="PACKAGE==VERSION",
        help="one more pure-Python wheel, without what it depends on",
    )
    given = parser.parse_args(arguments)
    start = time.monotonic()
    try:
        pins = wheels.parse_pins(_PINS.read_text().splitlines(), where=_PINS)
        extra = wheels.parse_pins(given.extra, where="--extra", pure=True)
        size = make(given.out.absolute(), choose(given.arch), [*pins, *extra], given.wheels)
    except GpuError as failure:
        print(failure, file=sys.stderr)
        return 3
    except OSError as error:
        print(explain_os_error(error, given.out), file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        _say("interrupted; nothing was written")
        return 130
    _say(f"{given.out}: {size} bytes after {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
