"""Which capture fits an installed vLLM, and why."""

from __future__ import annotations

from dataclasses import dataclass

from harness.errors import Refused
from harness.recipe._context import check_layers, check_native
from harness.recipe._types import Capture, RecipeRequest


@dataclass(frozen=True)
class Choice:
    """A capture and the reason for it."""

    capture: Capture
    why: str


def choose_capture(request: RecipeRequest) -> Choice:
    """Take the native capture where it can do what is asked, else the patched one.

    Raises:
        NotComparable: The installed vLLM is unknown.
    """
    check_layers(request)
    try:
        check_native(request)
    except Refused as refusal:
        failure = refusal.failure
        return Choice(
            "patched", f"native capture cannot: it needs {failure.expected}; found {failure.found}"
        )
    return Choice("native", f"vLLM {request.engine.vllm} can do all that is asked by itself")
