"""Every seam that speculators 0.3.0 and 0.4.0, the native and the patched capture rely on.

Sources: ``data_generation`` of the speculators 0.3.0 and 0.4.0 wheels, ``harness/inside`` and
``harness/recipe``, and each release's own files.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from harness.seams import (
    _inventory_arguments,
    _inventory_config,
    _inventory_connectors,
    _inventory_engine,
    _inventory_executor,
    _inventory_model,
    _inventory_worker,
)
from harness.seams.seam import Consumer, Seam

SEAMS: tuple[Seam, ...] = (
    *_inventory_config.SEAMS,
    *_inventory_arguments.SEAMS,
    *_inventory_engine.SEAMS,
    *_inventory_executor.SEAMS,
    *_inventory_worker.SEAMS,
    *_inventory_model.SEAMS,
    *_inventory_connectors.SEAMS,
)
"""All seams, by area."""

BY_ID: Mapping[str, Seam] = MappingProxyType({seam.id: seam for seam in SEAMS})
"""Seam id -> seam."""


def used_by(consumer: Consumer) -> tuple[Seam, ...]:
    """Return the seams that a consumer relies on."""
    return tuple(seam for seam in SEAMS if seam.use(consumer) is not None)
