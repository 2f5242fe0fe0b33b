"""Recorded figures by key, floors that follow from them, and the judge. ``docs/baselines.md``."""

from __future__ import annotations

from harness.baseline._bounds import LARGEST_SPREAD, LEAST_JUDGED, LEAST_RUNS, Bounds, bounds
from harness.baseline._model import model_name
from harness.baseline._series import Series, series
from harness.baseline.entry import Baseline, Origin, admit
from harness.baseline.finding import Finding, Status, exit_code
from harness.baseline.judge import judge
from harness.baseline.key import ABSENT, Difference, Key, differences
from harness.baseline.seen import compare, seen
from harness.baseline.store import Found, Stored, find, packed, read_file, read_folders, write

__all__ = [
    "ABSENT",
    "LARGEST_SPREAD",
    "LEAST_JUDGED",
    "LEAST_RUNS",
    "Baseline",
    "Bounds",
    "Difference",
    "Finding",
    "Found",
    "Key",
    "Origin",
    "Series",
    "Status",
    "Stored",
    "admit",
    "bounds",
    "compare",
    "differences",
    "exit_code",
    "find",
    "judge",
    "model_name",
    "packed",
    "read_file",
    "read_folders",
    "seen",
    "series",
    "write",
]
