"""The recipe: which settings an engine gets, and why.

:func:`build` is pure: the same platform, engine, model and request give the same
:class:`Recipe`. Every trap that a release of vLLM holds for hidden-state capture is one
line of it, with its reason; the engine's side asserts what the engine resolved.
"""

from harness.recipe._build import build
from harness.recipe._capture import writer_threads
from harness.recipe._choice import Choice, choose_capture
from harness.recipe._types import (
    Capture,
    EngineFacts,
    ModelFacts,
    Platform,
    Recipe,
    RecipeRequest,
    Setting,
)

__all__ = [
    "Capture",
    "Choice",
    "EngineFacts",
    "ModelFacts",
    "Platform",
    "Recipe",
    "RecipeRequest",
    "Setting",
    "build",
    "choose_capture",
    "writer_threads",
]
