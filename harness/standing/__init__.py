"""Whether a consumer works on a release, by what its files show; for the gate and for a load."""

from __future__ import annotations

from harness.standing._judge import Standing, patch_states, standing
from harness.standing._needs import needs_of

__all__ = ["Standing", "needs_of", "patch_states", "standing"]
