"""Seams: where the harness and speculators touch vLLM, and what a release offers there.

``read_surface(SOURCE)`` reads a release without importing it, ``recorded(RELEASE)`` gives one
read before, ``bind(SURFACE, CONSUMERS)`` says which calls would not get through.
"""

from __future__ import annotations

from harness.seams._fields import Field
from harness.seams._open import open_source
from harness.seams._read import read_surface, surface_of
from harness.seams._source import Named, Source
from harness.seams.binding import Finding, bind, bind_call, call_problems
from harness.seams.inventory import BY_ID, SEAMS, used_by
from harness.seams.recorded import recorded, releases, spelled
from harness.seams.seam import Call, Consumer, Kind, Seam, Use
from harness.seams.surface import MISSING, UNKNOWN, Entry, Surface

__all__ = [
    "BY_ID",
    "MISSING",
    "SEAMS",
    "UNKNOWN",
    "Call",
    "Consumer",
    "Entry",
    "Field",
    "Finding",
    "Kind",
    "Named",
    "Seam",
    "Source",
    "Surface",
    "Use",
    "bind",
    "bind_call",
    "call_problems",
    "open_source",
    "read_surface",
    "recorded",
    "releases",
    "spelled",
    "surface_of",
    "used_by",
]
