"""Name what a module's forward was given, however the caller passed it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch


class Names:
    """Names the arguments of a module's forward.

    Args:
        module: Its ``forward`` must spell out its parameters.
        order: The names in order, for a forward that takes ``*args`` (vLLM's custom ops).
    """

    def __init__(self, module: Any = None, order: Sequence[str] = ()) -> None:
        self._order = tuple(order) or tuple(inspect.signature(module.forward).parameters)

    def of(self, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the given arguments by name."""
        return {**dict(zip(self._order, args, strict=False)), **kwargs}


# RMSNorm.forward(x, residual=None); DeepSeek passes both by place in every release read.
NORM = Names(order=("hidden_states", "residual"))


def stream_of(given: dict[str, Any]) -> torch.Tensor:
    """Return the residual stream on entering a layer or norm, as a tensor of its own.

    The sum is new. Without a residual (layer 0) the layer goes on to write into what it was
    given, so that is copied.
    """
    hidden: torch.Tensor = given["hidden_states"]
    residual = given.get("residual")
    return hidden.clone() if residual is None else hidden + residual
