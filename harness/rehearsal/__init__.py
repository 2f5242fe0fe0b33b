"""The load, small: what kills a load of 20 minutes shows in two, before it."""

from __future__ import annotations

from harness.rehearsal.facts import Rehearsal
from harness.rehearsal.run import LAYERS, rehearse

__all__ = ["LAYERS", "Rehearsal", "rehearse"]
