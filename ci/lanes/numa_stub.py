"""Let vLLM's CPU kernels load on a machine without libnuma.

vLLM's kernels link against ``libnuma.so.1``, which no wheel brings. Without it they fail to
load, and vLLM only warns. A stand-in whose every function returns -1 says what libnuma says
on a machine without NUMA: ``numa_available() == -1``, and vLLM then binds no memory. A
``.pth`` file loads it at each start of the environment's Python: once it is in the process,
the loader takes it for the kernels by its soname.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import stub_libs

_SONAME = "libnuma.so.1"
_NOT_AVAILABLE = -1


def needs_stub() -> bool:
    """Say whether the loader finds no libnuma."""
    try:
        ctypes.CDLL(_SONAME)
    except OSError:
        return True
    return False


def build(site_packages: Path, compiler: str) -> Path:
    """Build the stand-in beside vLLM's kernels, and have it loaded at every start."""
    kernels = sorted((site_packages / "vllm").glob("_C*.so"))
    readings = tuple(map(stub_libs.read, kernels))
    (stub,) = stub_libs.plan(readings, [_SONAME], returns=_NOT_AVAILABLE)
    library = stub_libs.compile_stub(stub, site_packages / "vllm", compiler)
    hook = site_packages / "harness_numa_stub.pth"
    hook.write_text(f"import ctypes; ctypes.CDLL({str(library)!r})\n")
    return library
