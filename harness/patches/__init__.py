"""Patches: what makes speculators 0.3.0's in-process generator right on newer vLLM.

``PATCHES`` lists them in the order in which their faults are met, ``by_id(ID)`` gives one,
``PATCH.state(SURFACE)`` says what it is to a release, ``PATCH.apply()`` puts it on. Nothing here
edits a file or imports a library: a patch replaces names of a module that is there.
"""

from __future__ import annotations

from harness.patches._environment import Environment, of_python, of_release
from harness.patches._modules import Modules, live
from harness.patches._page import page
from harness.patches._patch import Change, NotNeeded, Patch, Process, Unfit
from harness.patches._registry import PATCHES, by_id, check_conflicts
from harness.patches._start import interpreter_of, needed_in, patched_environment
from harness.patches._start import run as run_patched
from harness.patches._state import State, Status

__all__ = [
    "PATCHES",
    "Change",
    "Environment",
    "Modules",
    "NotNeeded",
    "Patch",
    "Process",
    "State",
    "Status",
    "Unfit",
    "by_id",
    "check_conflicts",
    "interpreter_of",
    "live",
    "needed_in",
    "of_python",
    "of_release",
    "page",
    "patched_environment",
    "run_patched",
]
