"""What an engine will need, known before it is started: memory, time, disk."""

from __future__ import annotations

from harness.estimate._build import estimate, most_layers
from harness.estimate._cache import CachePages, cache_pages
from harness.estimate._cards import CARDS, Card, card
from harness.estimate._engine import EngineSize, run_dtype
from harness.estimate._estimate import Estimate
from harness.estimate._host import ReadRate, load_seconds, measure_read
from harness.estimate._model import Model, folder_model, profile_model
from harness.estimate._needs import needs
from harness.estimate._sharding import ShardCheck, shard_checks, tensor_parallel_sizes
from harness.estimate._terms import Term
from harness.estimate._units import gib, parse_size
from harness.estimate._verdict import Verdict

__all__ = [
    "CARDS",
    "CachePages",
    "Card",
    "EngineSize",
    "Estimate",
    "Model",
    "ReadRate",
    "ShardCheck",
    "Term",
    "Verdict",
    "cache_pages",
    "card",
    "estimate",
    "folder_model",
    "gib",
    "load_seconds",
    "measure_read",
    "most_layers",
    "needs",
    "parse_size",
    "profile_model",
    "run_dtype",
    "shard_checks",
    "tensor_parallel_sizes",
]
