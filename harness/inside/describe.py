"""What a checkpoint's tokenizer is, as facts for ``harness doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.inside.chat import Renderer, first_line, load_tokenizer, needs_remote_code
from harness.inside.hfmodel import read_config
from harness.inside.wire import Emit, OpError

_NAMED = ("bos", "eos", "pad", "unk")
# Names under which wrapper configurations keep the id that stands for an image patch.
_PLACEHOLDERS = (
    "media_placeholder_token_id",
    "image_token_id",
    "image_token_index",
    "video_token_id",
)
_PROBE = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})


def describe(params: dict[str, Any], emit: Emit) -> dict[str, Any]:
    """Describe the tokenizer of a checkpoint; a tokenizer that fails is a fact, no error.

    Params:
        model: Checkpoint folder.
        trust_remote_code: Let the checkpoint's own tokenizer code run; false when missing.

    Returns:
        ``loads`` and ``problem`` (id and text, or null), ``needs_remote_code``, ``class``,
        ``fast``, ``vocab_size`` (ids the tokenizer can give), ``model_vocab_size`` (rows of
        the embedding, or null), ``special_ids`` (role -> id), ``end_ids``,
        ``placeholder_ids`` (name in the configuration -> id), ``chat_template``,
        ``template_problem`` and ``generation_marks``.

    Raises:
        OpError: ``model.no-config`` or ``model.broken-config``.
    """
    model = Path(params["model"])
    config = read_config(model)
    text = config["text_config"] if isinstance(config.get("text_config"), dict) else config
    facts: dict[str, Any] = {
        "loads": False,
        "problem": None,
        "needs_remote_code": needs_remote_code(model),
        "model_vocab_size": text.get("vocab_size"),
        "placeholder_ids": {
            name: config[name] for name in _PLACEHOLDERS if isinstance(config.get(name), int)
        },
    }
    try:
        tokenizer = load_tokenizer(
            model, trust_remote_code=bool(params.get("trust_remote_code", False))
        )
    except OpError as error:
        facts["problem"] = {"id": error.id, "text": error.found, "next": error.next}
        return facts
    renderer = Renderer(tokenizer)
    template = getattr(tokenizer, "chat_template", None)
    return facts | {
        "loads": True,
        "class": type(tokenizer).__name__,
        "fast": bool(getattr(tokenizer, "is_fast", False)),
        "vocab_size": len(tokenizer),
        "special_ids": _special_ids(tokenizer),
        "end_ids": _end_ids(config, text),
        "chat_template": bool(template),
        "template_problem": _template_problem(renderer) if template else None,
        "generation_marks": renderer.marks_generations,
    }


def _special_ids(tokenizer: Any) -> dict[str, int]:
    ids = {name: getattr(tokenizer, f"{name}_token_id", None) for name in _NAMED}
    return {name: int(id) for name, id in ids.items() if id is not None}


def _end_ids(*configs: dict[str, Any]) -> list[int]:
    found: set[int] = set()
    for config in configs:
        ids = config.get("eos_token_id")
        found |= {id for id in (ids if isinstance(ids, list) else [ids]) if isinstance(id, int)}
    return sorted(found)


def _template_problem(renderer: Renderer) -> str | None:
    """Render two turns; a template that fails on these fails on everything."""
    try:
        renderer.ids(_PROBE, add_generation_prompt=False)
    except Exception as error:
        return f"{type(error).__name__}: {first_line(error)}"
    return None
