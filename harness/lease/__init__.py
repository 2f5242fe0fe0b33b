"""Leases: a loaded engine that outlives a test run, kept by a process of its own.

``start`` loads one, ``attach`` uses it where code, patches, recipe and model are those that it
was loaded from, ``stop`` ends it; see ``docs/leases.md``. Reading records needs no library.
"""

from __future__ import annotations
