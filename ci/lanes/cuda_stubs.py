"""Let torch's CUDA build run on a machine without CUDA, without its 3 GB of CUDA libraries.

Where no CPU-only wheel of torch can be had, the CUDA build computes on the CPU just as well,
but the loader must find some fifteen CUDA libraries. Stand-ins for them are put into torch's
own library folder, which its libraries search (their RPATH ends in ``$ORIGIN``), so no
environment variable is needed. Each function returns 100, ``cudaErrorNoDevice``: torch finds
no GPU and calls no further.

The driver (``libcuda.so.1``) gets no stand-in: a machine without a GPU lacks it anyway, and
torch copes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import stub_libs

_NO_DEVICE = 100
_DRIVER = "libcuda.so.1"
_CUDA_SONAME = re.compile(r"lib(cu|nv|nccl)")


def needs_stubs(torch_lib: Path) -> bool:
    """Say whether this torch is a CUDA build, whose libraries then have to be found."""
    return (torch_lib / "libtorch_cuda.so").exists()


def missing(readings: Iterable[stub_libs.Reading], present: Iterable[str]) -> frozenset[str]:
    """Name the CUDA libraries that are asked for and not among the files ``present``."""
    asked = frozenset().union(*(one.needed for one in readings))
    return frozenset(filter(_CUDA_SONAME.match, asked)) - {_DRIVER, *present}


def build(torch_lib: Path, compiler: str) -> tuple[Path, ...]:
    """Build every stand-in that torch's libraries in ``torch_lib`` lack, beside them."""
    libraries = sorted(path for path in torch_lib.glob("*.so*") if path.is_file())
    readings = tuple(map(stub_libs.read, libraries))
    names = missing(readings, present=(path.name for path in libraries))
    stubs = stub_libs.plan(readings, names, returns=_NO_DEVICE)
    return tuple(stub_libs.compile_stub(stub, torch_lib, compiler) for stub in stubs)
