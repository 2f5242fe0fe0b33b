"""The one place where patches get hold of a module."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import TypeAlias

Modules: TypeAlias = Callable[[str], ModuleType]
"""Gives a module by its dotted name; raises ``ImportError`` where there is none."""

live: Modules = importlib.import_module
"""Modules of the running interpreter."""

GENERATOR = "speculators.data_generation.vllm_hidden_states_generator"
"""Module of the controller: it drives scheduler and executor."""
EXTENSION = "speculators.data_generation.custom_worker"
"""Module of the worker: what ``worker_extension_cls`` names."""
CACHE_UTILS = "vllm.v1.core.kv_cache_utils"
"""Where 0.3.0's generator imports what plans the KV cache from."""
CONFIGURATION = "transformers.configuration_utils"
"""Where pydantic looks up the types of a speculator's configuration."""
