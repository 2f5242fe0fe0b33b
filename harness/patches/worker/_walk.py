"""From what the runner calls its model to the object that holds the decoder layers."""

from __future__ import annotations

from typing import Any

_HAS = ("layers", "norm", "start_layer", "end_layer")
_INWARD = ("language_model", "model")


def base_model(model: Any) -> Any | None:
    """Return the first object inwards with decoder layers and a final norm, or None.

    ``KimiK25ForConditionalGeneration`` has a ``language_model`` and no ``model``
    (vLLM 0.15.0 held the inner model there, from 0.16.0 the causal one).
    """
    found, seen = model, 0
    while found is not None and seen < 4:
        if all(hasattr(found, name) for name in _HAS):
            return found
        found = next((getattr(found, name) for name in _INWARD if hasattr(found, name)), None)
        seen += 1
    return None
