"""Let vLLM 0.18 and 0.19 start on a CPU without tcmalloc and Intel's OpenMP.

Their worker refuses to start unless both names stand in ``LD_PRELOAD``; from 0.20 on it only
warns, "for best performance". It looks at the variable and at nothing else, after this module is
imported, so naming them is enough. The loader has read the variable before and loads nothing
more; a program that the worker starts prints that they cannot be preloaded, and runs.
"""

from __future__ import annotations

import os

_VARIABLE = "LD_PRELOAD"
_NAMES = ("libtcmalloc", "libiomp")


def install() -> None:
    """Name the libraries that are not named, in this process."""
    named = os.environ.get(_VARIABLE, "")
    missing = [name for name in _NAMES if name not in named]
    os.environ[_VARIABLE] = ":".join(filter(None, [named, *missing]))
