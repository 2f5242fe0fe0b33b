"""The walk of the data: plan, load, prove, capture, publish."""

from __future__ import annotations

from harness.extraction.observer import Observer, Silent
from harness.extraction.options import EngineOptions, ExtractOptions
from harness.extraction.plan import ExtractPlan, make_plan
from harness.extraction.run import ExtractResult, extract
from harness.extraction.session import open_session

__all__ = [
    "EngineOptions",
    "ExtractOptions",
    "ExtractPlan",
    "ExtractResult",
    "Observer",
    "Silent",
    "extract",
    "make_plan",
    "open_session",
]
