"""The programs that a pack is made with: found together, called with errors that name them."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from failures import GpuError, last_lines

_PROGRAMS = ("c++filt", "zstd", "xz")
_CUDA_PROGRAMS = ("ptxas", "fatbinary")
# A fat binary's own header, which `fatbinary` writes before the entry.
_CONTAINER_HEADER = 16
# Of no architecture that a pack is made for: CUDA loads the library, and a call of what was left
# out fails with "no kernel image is available", which says it best.
_NOTHING_ARCH = 75
_NOTHING = b".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry e() { ret; }\n"


@dataclass(frozen=True)
class Toolbox:
    """Where each program is."""

    programs: Mapping[str, str]

    def demangle(self, names: Iterable[bytes]) -> str:
        """Return C++ names in the language's own writing, one a line."""
        return self.run("c++filt", stdin=b"\n".join(names) + b"\n").decode(errors="replace")

    def decompress(self, code: bytes) -> bytes:
        """Return the text of a compressed PTX entry."""
        return self.run("zstd", "-dqc", stdin=code).rstrip(b"\0")

    def assemble(self, ptx: bytes, arch: int) -> bytes:
        """Compile PTX; return one compressed entry of a fat binary."""
        with tempfile.TemporaryDirectory(prefix="harness-ptx-") as scratch:
            # The same names each time: the programs may write them into what they make.
            folder = Path(scratch)
            (folder / "kernel.ptx").write_bytes(ptx)
            to_image = (f"-arch=sm_{arch}", "kernel.ptx", "-o", "kernel.cubin")
            self.run("ptxas", *to_image, cwd=folder)
            image = f"--image3=kind=elf,sm={arch},file=kernel.cubin"
            to_entry = ("--create", "kernel.fb", "-64", "--compress-all", image)
            self.run("fatbinary", *to_entry, cwd=folder)
            return (folder / "kernel.fb").read_bytes()[_CONTAINER_HEADER:]

    def nothing(self) -> bytes:
        """Return an entry with an empty kernel, for a fat binary of which nothing stays."""
        return self.assemble(_NOTHING, _NOTHING_ARCH)

    def run(
        self, program: str, *arguments: str, stdin: bytes = b"", cwd: Path | None = None
    ) -> bytes:
        """Run a program to its end and return what it printed.

        Raises:
            GpuError: It failed.
        """
        command = [self.programs[program], *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, cwd=cwd)
        if done.returncode:
            raise GpuError(
                "gpu.tool-failed",
                expected=f"{program} to end well",
                found=f"exit code {done.returncode}: "
                + last_lines(done.stderr.decode(errors="replace")),
                where=" ".join(command),
                next="take the tools of the CUDA release that the wheel was built with (13.0)",
            )
        return done.stdout


def find_tools(environment: Mapping[str, str] | None = None) -> Toolbox:
    """Find every program, CUDA's also under ``$CUDA`` and /usr/local/cuda.

    Raises:
        GpuError: One or more are missing; names all of them.
    """
    environment = os.environ if environment is None else environment
    path = environment.get("PATH", os.defpath)
    cuda = environment.get("CUDA") or "/usr/local/cuda"
    cuda_path = os.pathsep.join([str(Path(cuda) / "bin"), path])
    found = {name: shutil.which(name, path=path) for name in _PROGRAMS}
    found.update({name: shutil.which(name, path=cuda_path) for name in _CUDA_PROGRAMS})
    missing = [name for name, place in found.items() if place is None]
    if missing:
        raise GpuError(
            "gpu.no-tool",
            expected="c++filt (binutils), zstd, xz (xz-utils), and CUDA 13.0's ptxas and fatbinary",
            found="missing: " + ", ".join(missing),
            where=f"PATH; {cuda}/bin",
            next="install them; CUDA=/path/to/toolkit names a toolkit elsewhere",
        )
    return Toolbox({name: place for name, place in found.items() if place is not None})
