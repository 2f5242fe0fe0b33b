"""A checkpoint's own tokenizer and chat template, with nothing that could block or fetch.

The model must be a folder; the network is forbidden; code of the checkpoint runs only when
the user allows it; standard input is closed by the entry points, so a library that wants to
ask a question gets end-of-file instead of waiting for ever.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.inside.hfmodel import go_offline
from harness.inside.wire import OpError

Turn = Mapping[str, Any]


def close_stdin() -> None:
    """Point standard input at the null device."""
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(null, 0)
    finally:
        os.close(null)


def load_tokenizer(model: Path, *, trust_remote_code: bool) -> Any:
    """Load the tokenizer of a checkpoint folder.

    Raises:
        OpError: ``tokenizer.no-folder``, ``tokenizer.remote-code`` when it needs code of the
            checkpoint and that is not allowed, ``tokenizer.broken`` for every other failure.
    """
    if not model.is_dir():
        raise OpError(
            "tokenizer.no-folder",
            expected="a checkpoint folder",
            found="no such folder",
            where=str(model),
            next="give the folder of the model",
        )
    go_offline()
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            str(model), trust_remote_code=trust_remote_code, local_files_only=True
        )
    # Tokenizers of checkpoints raise what they like, down to SystemExit in remote code.
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        if not trust_remote_code and needs_remote_code(model):
            raise OpError(
                "tokenizer.remote-code",
                expected="a tokenizer that transformers can load by itself",
                found="a tokenizer whose code is in the checkpoint",
                where=str(model / "tokenizer_config.json"),
                next="read that code, then allow it with --trust-remote-code",
            ) from error
        raise OpError(
            "tokenizer.broken",
            expected="a tokenizer that loads",
            found=f"{type(error).__name__}: {first_line(error)}",
            where=str(model),
            next="check the tokenizer files of the checkpoint",
        ) from error


def needs_remote_code(model: Path) -> bool:
    """Whether ``tokenizer_config.json`` names tokenizer code inside the checkpoint."""
    try:
        config = json.loads((model / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    auto_map = config.get("auto_map") if isinstance(config, dict) else None
    return bool(auto_map) and (not isinstance(auto_map, dict) or "AutoTokenizer" in auto_map)


def first_line(error: BaseException) -> str:
    """First non-empty line of an error's text, cut to a readable length."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else "(no text)"


class Renderer:
    """Turns messages into token ids through the chat template.

    Args:
        tokenizer: A loaded tokenizer with a chat template.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @property
    def marks_generations(self) -> bool:
        """Whether the template says itself which text is generated, and can be followed."""
        template = getattr(self._tokenizer, "chat_template", None)
        fast = bool(getattr(self._tokenizer, "is_fast", False))
        return fast and isinstance(template, str) and "endgeneration" in template

    def ids(
        self,
        messages: Sequence[Turn],
        *,
        add_generation_prompt: bool,
        tools: list[Any] | None = None,
    ) -> list[int]:
        """Render and encode, without truncation."""
        encoded = self._tokenizer.apply_chat_template(
            [plain_turn(turn) for turn in messages],
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            tokenize=True,
            return_dict=False,
        )
        return [int(token) for token in encoded]

    def ids_and_mask(
        self, messages: Sequence[Turn], *, tools: list[Any] | None = None
    ) -> tuple[list[int], list[int]]:
        """Render and encode with the template's own generation marks as mask."""
        encoded = self._tokenizer.apply_chat_template(
            [plain_turn(turn) for turn in messages],
            tools=tools,
            add_generation_prompt=False,
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        return (
            [int(token) for token in encoded["input_ids"]],
            [int(bit) for bit in encoded["assistant_masks"]],
        )


def plain_turn(turn: Turn) -> dict[str, Any]:
    """Return a turn as a chat template expects it: text content, parsed tool arguments.

    vLLM does the same before it renders. A template that prints ``content`` would otherwise
    print a list of parts as Python text.

    Raises:
        ValueError: A part of the content is not text.
    """
    plain = dict(turn)
    content = plain.get("content")
    if isinstance(content, list):
        texts = [part if isinstance(part, str) else _text_of(part) for part in content]
        plain["content"] = "\n".join(texts)
    if isinstance(plain.get("tool_calls"), list):
        plain["tool_calls"] = [_plain_call(call) for call in plain["tool_calls"]]
    return plain


def _text_of(part: Any) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    raise ValueError(f"content part of type {kind!r}; only text can be tokenised here")


def _plain_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    return {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}
