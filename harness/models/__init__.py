"""Models the harness knows: Kimi-K2.5's facts, and small models of its shape made here."""

from __future__ import annotations

from harness.models._kimi import KIMI_K25, KIMI_K25_TINY, PROFILES, KimiShape, Profile
from harness.models._make import make

__all__ = ["KIMI_K25", "KIMI_K25_TINY", "PROFILES", "KimiShape", "Profile", "make"]
