"""The text model of a checkpoint as a plain HF transformers module, for reference forwards.

A Kimi-K2.5 checkpoint wraps its text model: weights under ``language_model.``, configuration
under ``text_config``, model code fetched from the checkpoint. transformers needs none of it
for text: the text model is a ``DeepseekV3ForCausalLM``, so it is built from ``text_config``
and the weights are renamed while they are read. No code of the checkpoint runs, nothing is
copied and nothing is looked up on a network.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.inside.wire import OpError

_WRAPPED = "language_model."
# Weights that a text forward has no place for: vision parts, and rotary tables of old writers.
_NOT_TEXT = ("vision_tower.", "mm_projector.", "multi_modal_projector.")
_DTYPES = ("float32", "float64", "bfloat16")


@dataclass(frozen=True)
class TextModel:
    """A loaded text model.

    Attributes:
        module: The ``*ForCausalLM`` module, in evaluation mode.
        num_layers: Decoder layers, L.
        vocab_size: Rows of the embedding.
        wrapped: Whether the weights came out of a wrapper checkpoint.
    """

    module: Any
    num_layers: int
    vocab_size: int
    wrapped: bool


def go_offline() -> None:
    """Forbid every look-up on a network; call before transformers is imported."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TRANSFORMERS_OFFLINE"] = "1"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def read_config(model: Path) -> dict[str, Any]:
    """Read ``config.json`` of a checkpoint folder.

    Raises:
        OpError: ``model.no-config`` or ``model.broken-config``.
    """
    path = model / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OpError(
            "model.no-config",
            expected="a folder with config.json",
            found=f"{type(error).__name__}: {error.strerror}",
            where=str(path),
            next="give the folder of a checkpoint",
        ) from error
    except ValueError as error:
        raise _broken_config(path, "JSON", str(error)) from error
    if not isinstance(config, dict):
        raise _broken_config(path, "a JSON object", type(config).__name__)
    return config


def load_text_model(model: Path, dtype: str = "float32") -> TextModel:
    """Load the text model of a checkpoint folder on CPU.

    Args:
        model: Folder with ``config.json`` and safetensors files; plain or wrapper.
        dtype: ``float32``, ``float64`` or ``bfloat16``; weights are converted to it.

    Raises:
        OpError: ``reference.dtype``, ``reference.quantised``, ``reference.architecture``,
            ``reference.weights``, or the errors of :func:`read_config`.
    """
    if dtype not in _DTYPES:
        raise OpError(
            "reference.dtype",
            expected=f"one of {', '.join(_DTYPES)}",
            found=dtype,
            where="reference forward",
            next="compute the reference in float32",
        )
    raw = read_config(model)
    wrapped = isinstance(raw.get("text_config"), dict)
    text = raw["text_config"] if wrapped else raw
    _refuse_quantised(model, raw, text)
    architecture = _architecture(model, text)
    go_offline()
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model_class = getattr(transformers, architecture, None)
    if model_class is None:
        raise _unknown_architecture(model, architecture)
    fields = {k: v for k, v in text.items() if k not in ("auto_map", "model_type")}
    config = model_class.config_class(**fields)
    loaded, info = model_class.from_pretrained(
        str(model),
        config=config,
        dtype=getattr(torch, dtype),
        attn_implementation="eager",
        key_mapping={f"^{_WRAPPED.replace('.', chr(92) + '.')}": ""} if wrapped else None,
        local_files_only=True,
        output_loading_info=True,
        use_safetensors=True,
        **_plain_experts(config),
    )
    _check_weights(model, info, wrapped)
    loaded.eval().requires_grad_(False)
    # Weights mapped from a file lie at any address, and kernels for a single row choose their
    # summation order by alignment: the same model from two files gave unlike last bits.
    for tensor in (*loaded.parameters(), *loaded.buffers()):
        tensor.data = tensor.data.clone(memory_format=torch.contiguous_format)
    return TextModel(loaded, int(config.num_hidden_layers), int(config.vocab_size), wrapped)


def _plain_experts(config: Any) -> dict[str, str]:
    # transformers >= 5 picks a fused expert kernel by platform; the loop is the plain truth.
    if hasattr(config, "_experts_implementation"):
        return {"experts_implementation": "eager"}
    return {}


def _refuse_quantised(model: Path, raw: dict[str, Any], text: dict[str, Any]) -> None:
    quantisation = text.get("quantization_config") or raw.get("quantization_config")
    if not quantisation:
        return
    method = quantisation.get("quant_method") if isinstance(quantisation, dict) else quantisation
    raise OpError(
        "reference.quantised",
        expected="a checkpoint in floating point",
        found=f"quantization_config: {method}",
        where=str(model / "config.json"),
        next="give the dequantised twin of this checkpoint (its int4-twin) as the reference",
    )


def _architecture(model: Path, text: dict[str, Any]) -> str:
    names = text.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else "none"
    if not name.endswith("ForCausalLM"):
        raise _unknown_architecture(model, name)
    return name


def _unknown_architecture(model: Path, name: str) -> OpError:
    return OpError(
        "reference.architecture",
        expected="a text architecture that transformers itself has, such as DeepseekV3ForCausalLM",
        found=name,
        where=str(model / "config.json"),
        next="check architectures of the (text) configuration, or upgrade transformers",
    )


def _check_weights(model: Path, info: dict[str, Any], wrapped: bool) -> None:
    """A forward with a weight made up by initialisation is no reference."""
    unexpected = [
        key
        for key in sorted(info["unexpected_keys"])
        if not key.endswith("rotary_emb.inv_freq") and not (wrapped and key.startswith(_NOT_TEXT))
    ]
    problems = {
        "missing": sorted(info["missing_keys"]),
        "unexpected": unexpected,
        "of another shape": sorted(str(key) for key in info["mismatched_keys"]),
    }
    found = [f"{len(keys)} {what}, such as {keys[0]}" for what, keys in problems.items() if keys]
    if found:
        raise OpError(
            "reference.weights",
            expected="every weight of the text model in the checkpoint, and no other",
            found="; ".join(found),
            where=str(model),
            next="make or fetch the checkpoint again",
        )


def _broken_config(path: Path, expected: str, found: str) -> OpError:
    return OpError(
        "model.broken-config",
        expected=expected,
        found=found,
        where=str(path),
        next="restore config.json of the checkpoint",
    )
