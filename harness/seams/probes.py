"""Probes: named questions about behaviour, answered from the files of a release.

A probe never guesses: code of a shape that it does not know is ``unknown``, and what a release
does not have is ``absent``. The values over 35 releases are in ``fixtures/surfaces``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from harness.seams import (
    _probes_cache,
    _probes_calls,
    _probes_depths,
    _probes_engine,
    _probes_model,
    _probes_native,
    _probes_registry,
    _probes_rows,
    _probes_saved,
    _probes_slots,
)
from harness.seams._classes import Classes

Probe = Callable[[Classes], str]

PROBES: Mapping[str, Probe] = MappingProxyType(
    {
        **_probes_engine.PROBES,
        **_probes_model.PROBES,
        **_probes_registry.PROBES,
        **_probes_calls.PROBES,
        **_probes_native.PROBES,
        **_probes_depths.PROBES,
        **_probes_rows.PROBES,
        **_probes_slots.PROBES,
        **_probes_cache.PROBES,
        **_probes_saved.PROBES,
    }
)
"""Probe name -> the question, asked of an opened release."""
