"""What a checkpoint folder says about its model, read from ``config.json`` alone."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import UsageError
from harness.models._at_load import WEIGHTS_PLAN

_LAYER_KEYS = ("num_hidden_layers", "n_layer", "num_layers")
_PLACEHOLDER_KEYS = ("media_placeholder_token_id", "image_token_id", "image_token_index")
_TOKENIZER_FILES = ("tokenizer.json", "tiktoken.model", "tokenizer.model", "vocab.json")


@dataclass(frozen=True)
class ModelFacts:
    """One checkpoint, by what its configuration says.

    Attributes:
        path: Folder of the checkpoint.
        architecture: First of ``architectures``, the class that vLLM will build.
        is_wrapper: Whether the decoder sits inside a multimodal class (``text_config``).
        num_layers: Decoder layers, L.
        hidden_size: Width of the residual stream.
        vocab_size: Rows of the embedding.
        dtype: Dtype of the weights that are not quantised, such as ``bfloat16``; ``float32``
            when the configuration is silent.
        num_heads: Attention heads.
        is_mla: Whether attention is multi-head latent attention (``kv_lora_rank`` is set).
        quantization: ``int4`` for compressed-tensors with 4-bit integer weights, the method's
            name for anything else, or None.
        max_position_embeddings: Longest sequence that the model was made for.
        media_placeholder_id: Token id that a wrapper takes for an image patch; None for a
            text model.
        tokenizer_present: Whether the folder holds tokenizer files.
        weights_at_load: Whether the weights are made from a plan and not read from files.
    """

    path: Path
    architecture: str
    is_wrapper: bool
    num_layers: int
    hidden_size: int
    vocab_size: int
    dtype: str
    num_heads: int
    is_mla: bool
    quantization: str | None
    max_position_embeddings: int
    media_placeholder_id: int | None
    tokenizer_present: bool
    weights_at_load: bool = False


def read(path: str | os.PathLike[str]) -> ModelFacts:
    """Read a checkpoint folder's configuration.

    Args:
        path: Folder that holds ``config.json``.

    Returns:
        The facts; no weight is touched, no code of the checkpoint runs.

    Raises:
        UsageError: ``models.missing-folder``, ``models.no-config``, ``models.broken-config``,
            ``models.config-without-layers`` or ``models.config-incomplete``.
    """
    folder = Path(path)
    config = read_config(folder)
    nested = config.get("text_config")
    is_wrapper = isinstance(nested, dict)
    text: Mapping[str, Any] = nested if isinstance(nested, dict) else config
    where = folder / "config.json"
    return ModelFacts(
        path=folder,
        architecture=_architecture(config, where),
        is_wrapper=is_wrapper,
        num_layers=_layers(text, where),
        hidden_size=_size(text, "hidden_size", where),
        vocab_size=_size(text, "vocab_size", where),
        dtype=_dtype(config, text),
        num_heads=_size(text, "num_attention_heads", where),
        is_mla=bool(text.get("kv_lora_rank")),
        quantization=_quantization(config, text),
        max_position_embeddings=_size(text, "max_position_embeddings", where),
        media_placeholder_id=_placeholder(config) if is_wrapper else None,
        tokenizer_present=any((folder / name).is_file() for name in _TOKENIZER_FILES),
        weights_at_load=(folder / WEIGHTS_PLAN).is_file(),
    )


def read_config(folder: Path) -> dict[str, Any]:
    """Return ``config.json`` of a checkpoint folder.

    Args:
        folder: The checkpoint folder.

    Raises:
        UsageError: ``models.missing-folder``, ``models.no-config`` or ``models.broken-config``.
    """
    if not folder.is_dir():
        raise UsageError(
            "models.missing-folder",
            expected="the folder of a checkpoint",
            found="a file" if folder.exists() else "nothing there",
            where=str(folder),
            next="check the path; model names of a hub are not looked up",
        )
    where = folder / "config.json"
    try:
        config = json.loads(where.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(
            "models.no-config",
            expected="config.json in the checkpoint folder",
            found=_listing(folder),
            where=str(folder),
            next="give the folder that holds config.json and the weights",
        ) from error
    except OSError as error:
        raise _broken(where, f"{type(error).__name__}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise _broken(where, str(error)) from error
    if not isinstance(config, dict):
        raise _broken(where, f"a JSON {type(config).__name__}")
    return config


def _listing(folder: Path) -> str:
    names = sorted(entry.name for entry in folder.iterdir())
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "") or "an empty folder"


def _broken(where: Path, found: str) -> UsageError:
    return UsageError(
        "models.broken-config",
        expected="one JSON object",
        found=found,
        where=str(where),
        next="restore config.json from the checkpoint's source",
    )


def _architecture(config: Mapping[str, Any], where: Path) -> str:
    names = config.get("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str):
        return names[0]
    raise _incomplete("architectures", "a list with the model's class name", names, where)


def _layers(text: Mapping[str, Any], where: Path) -> int:
    for key in _LAYER_KEYS:
        count = text.get(key)
        if isinstance(count, int) and not isinstance(count, bool) and count > 0:
            return count
    found = {key: text[key] for key in _LAYER_KEYS if key in text}
    raise UsageError(
        "models.config-without-layers",
        expected="num_hidden_layers, a number over 0",
        found=f"{found}" if found else "no such key",
        where=str(where),
        next="give a decoder's checkpoint; layer ids cannot be resolved without its depth",
    )


def _size(text: Mapping[str, Any], key: str, where: Path) -> int:
    value = text.get(key)
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise _incomplete(key, "a number over 0", value, where)


def _incomplete(key: str, expected: str, value: object, where: Path) -> UsageError:
    return UsageError(
        "models.config-incomplete",
        expected=f"{key}: {expected}",
        found="no such key" if value is None else repr(value),
        where=str(where),
        next="restore config.json from the checkpoint's source",
    )


def _dtype(config: Mapping[str, Any], text: Mapping[str, Any]) -> str:
    for source in (config, text):  # vLLM's order: the outer one wins
        for key in ("dtype", "torch_dtype"):
            value = source.get(key)
            if isinstance(value, str) and value:
                return value.removeprefix("torch.")
    return "float32"


def _quantization(config: Mapping[str, Any], text: Mapping[str, Any]) -> str | None:
    block = text.get("quantization_config") or config.get("quantization_config")
    if not isinstance(block, dict) or not block:
        return None
    method = str(block.get("quant_method", "unknown"))
    groups = block.get("config_groups")
    if method != "compressed-tensors" or not isinstance(groups, dict):
        return method
    weights = [group.get("weights") for group in groups.values() if isinstance(group, dict)]
    four_bit = [
        isinstance(weight, dict) and weight.get("num_bits") == 4 and weight.get("type") == "int"
        for weight in weights
    ]
    return "int4" if four_bit and all(four_bit) else method


def _placeholder(config: Mapping[str, Any]) -> int | None:
    for key in _PLACEHOLDER_KEYS:
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None
