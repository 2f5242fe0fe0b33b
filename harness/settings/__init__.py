"""What a user may set, resolved once into one frozen object.

Order: command line, then environment (``HARNESS_*``), then ini file, then default. The source
of every value is kept, so that whoever shows the values can say where each one came from.
Standard library only.
"""

from __future__ import annotations

from harness.settings._definitions import TINY_LAYERS, Definition, definitions
from harness.settings._settings import (
    COMMAND_LINE,
    DEFAULT,
    ENVIRONMENT,
    INI,
    LEASE,
    SOURCES,
    Settings,
    resolve,
)

__all__ = [
    "COMMAND_LINE",
    "DEFAULT",
    "ENVIRONMENT",
    "INI",
    "LEASE",
    "SOURCES",
    "TINY_LAYERS",
    "Definition",
    "Settings",
    "definitions",
    "resolve",
]
