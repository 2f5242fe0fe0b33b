"""What happens in a patched process when a module to be patched has been imported."""

from __future__ import annotations

import os
import sys

from harness.patches import _ledger
from harness.patches._registry import PATCHES, by_id
from harness.patches._state import Status

IDS = "HARNESS_PATCHES"
"""Environment variable: ids of the patches to apply, parted by spaces; not set: all."""
MODULES = "HARNESS_PATCHES_MODULES"
"""Environment variable: the modules that they replace names in, for ``site/sitecustomize.py``."""
STARTED = "HARNESS_PATCHES_STARTED"
"""Environment variable: the file that ``site/sitecustomize.py`` makes when it is read."""


def imported(module: str) -> None:
    """Apply the chosen patches of a module and say so on standard error.

    Raises:
        Refused: One does not fit. The import fails with it: never run half patched.
    """
    # It may have been loaded anew: what was replaced in it before is gone.
    _ledger.forget(sys.modules[module])
    chosen = os.environ.get(IDS)
    patches = PATCHES if chosen is None else [by_id(id) for id in chosen.split()]
    states = {patch.id: patch.apply() for patch in patches if patch.module == module}
    said = [
        f"{label} {', '.join(ids)}"
        for label, status in (("in force:", Status.IN_FORCE), ("not needed:", Status.OBSOLETE))
        if (ids := [id for id, state in states.items() if state.status is status])
    ]
    if said:
        sys.stderr.write(f"harness patches: pid {os.getpid()}: {module}: {'; '.join(said)}\n")
        sys.stderr.flush()
