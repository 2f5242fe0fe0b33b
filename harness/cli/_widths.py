"""Commands to be copied stay whole: a table that does not fit wraps its cells, so they leave it."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

_WIDE = 100_000


def print_whole(console: Console, table: Callable[[bool], Table]) -> bool:
    """Print a table with its column of commands where that fits into the console's width.

    Args:
        console: Where to.
        table: Makes the table, with that column or without it.

    Returns:
        Whether the commands were printed; if not, the caller prints them below.
    """
    full = table(True)
    # A measure is cut at the width it is taken in.
    wide = console.options.update(max_width=_WIDE)
    fits = Measurement.get(console, wide, full).maximum <= console.width
    console.print(full if fits else table(False))
    return fits


def print_command(console: Console, before: str, command: str) -> None:
    """Print a command on a line of its own, however long that is."""
    console.print(f"    {before}{command}", markup=False, highlight=False, soft_wrap=True)
