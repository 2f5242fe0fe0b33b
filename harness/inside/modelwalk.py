"""Find the text decoder inside whatever a vLLM release wraps around it."""

from __future__ import annotations

from typing import Any

_INNER = ("language_model", "model")


def text_decoder(model: Any) -> Any:
    """Return the module that owns the decoder layers and the final norm.

    Walks ``language_model`` and ``model`` inwards (Kimi-K2.5's wrapper holds
    ``language_model.model``, DeepSeek ``model``) and takes the first module with both
    ``layers`` and ``norm``. Nothing is recognised by its configuration.

    Raises:
        LookupError: Nothing on the way has layers and a norm.
    """
    queue, path = [model], []
    while queue:
        module = queue.pop(0)
        path.append(type(module).__name__)
        if hasattr(module, "layers") and hasattr(module, "norm"):
            return module
        queue += [inner for name in _INNER if (inner := getattr(module, name, None)) is not None]
    raise LookupError(f"no module with layers and norm in {' > '.join(path)}")


def embedding(decoder: Any) -> Any:
    """Return the token embedding module of a text decoder.

    Raises:
        LookupError: The decoder has no ``embed_tokens``.
    """
    module = getattr(decoder, "embed_tokens", None)
    if module is None:
        raise LookupError(f"{type(decoder).__name__} has no embed_tokens")
    return module
