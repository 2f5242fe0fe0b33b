"""Models the harness knows: Kimi-K2.5's facts, and small models of its shape made here."""

from __future__ import annotations

from harness.models._cut import cut
from harness.models._facts import ModelFacts, read
from harness.models._int4 import GROUP_SIZE
from harness.models._kimi import KIMI_K25, KIMI_K25_TINY, PROFILES, KimiShape, Profile
from harness.models._make import make
from harness.models._shape import shape_of
from harness.models._shards import check_shards, fingerprint
from harness.models._stored import StoredTensor, stored_tensors

__all__ = [
    "GROUP_SIZE",
    "KIMI_K25",
    "KIMI_K25_TINY",
    "PROFILES",
    "KimiShape",
    "ModelFacts",
    "Profile",
    "StoredTensor",
    "check_shards",
    "cut",
    "fingerprint",
    "make",
    "read",
    "shape_of",
    "stored_tensors",
]
