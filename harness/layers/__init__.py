"""Layer ids: one canonical *depth*, the dialects of other projects, and the plan of a run.

Standard library only: the engine's side imports this package too.
"""

from harness.layers._capture import check_capture
from harness.layers._dialects import DIALECTS, PRESETS, Dialect, Preset, to_depth, to_dialect, usual
from harness.layers._plan import LAYOUTS, LayerPlan, resolve

__all__ = [
    "DIALECTS",
    "LAYOUTS",
    "PRESETS",
    "Dialect",
    "LayerPlan",
    "Preset",
    "check_capture",
    "resolve",
    "to_depth",
    "to_dialect",
    "usual",
]
