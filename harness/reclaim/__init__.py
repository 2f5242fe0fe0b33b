"""End what the harness started and nobody ends any more, and say what could not be freed.

Only processes that carry the harness's mark or stand in its records with pid and start time are
ended by themselves; anything else only when the user names it. See ``docs/leftovers.md``.
"""

from __future__ import annotations

from harness.reclaim.end import Patience, Reclaimer, Result
from harness.reclaim.find import Found, Standing, find
from harness.reclaim.meters import meter_of_this_machine
from harness.reclaim.plan import Action, Step, Target, plan, plan_for
from harness.reclaim.system import Linux

__all__ = [
    "Action",
    "Found",
    "Linux",
    "Patience",
    "Reclaimer",
    "Result",
    "Standing",
    "Step",
    "Target",
    "find",
    "meter_of_this_machine",
    "plan",
    "plan_for",
]
