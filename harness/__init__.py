"""Proved hidden states from vLLM: the hidden-state harness.

This package root stays free of third-party imports: the engine's own interpreter,
which may hold nothing of ours, imports it on the way to :mod:`harness.inside`.
"""

from __future__ import annotations

__version__ = "0.1.0"
