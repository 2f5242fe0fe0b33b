"""The made tokenizer: loads, encodes any text, round-trips, knows Kimi's specials."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness import models
from harness.models._kimi import KIMI_K25, KIMI_K25_TINY
from tests.unit.checkpoints import TINY


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.make(TINY, tmp_path_factory.mktemp("tok") / "model", architecture="plain")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    tokenizers = pytest.importorskip("tokenizers", reason="comes with transformers")
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.mark.parametrize(
    "text",
    [
        "Plain words, and\ttabs\nand newlines.",
        "  leading and trailing  ",
        "Übergrößenträger, 日本語, 🙂, \x00\x7f",
        "".join(chr(code) for code in range(0x20, 0x250)),
    ],
)
def test_any_text_round_trips_through_its_bytes(tokenizer: Any, text: str) -> None:
    ids = tokenizer.encode(text).ids
    assert ids == list(text.encode())
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_every_id_has_a_token_and_no_id_lies_outside(tokenizer: Any) -> None:
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    assert sorted(vocabulary.values()) == list(range(KIMI_K25_TINY.vocab_size))


def test_specials_are_single_tokens_at_kimis_places(tokenizer: Any) -> None:
    kimi = {
        "[BOS]": 163584,
        "[EOS]": 163585,
        "<|im_end|>": 163586,
        "<|im_user|>": 163587,
        "<|im_assistant|>": 163588,
        "<|im_system|>": 163594,
        "<|im_middle|>": 163601,
        "<|media_pad|>": 163605,
        "[PAD]": 163839,
    }
    for token, id_ in kimi.items():
        assert KIMI_K25.special_id(token) == id_
        assert tokenizer.encode(f"a{token}b").ids == [97, id_ - 163840 + 512, 98]


def test_placeholder_of_the_config_is_the_tokenizers(folder: Path, tmp_path: Path) -> None:
    wrapper = models.make(TINY, tmp_path / "wrapper")
    placeholder = models.read(wrapper).media_placeholder_id
    vocabulary = json.loads((wrapper / "tokenizer.json").read_text())["model"]["vocab"]
    assert placeholder == vocabulary["<|media_pad|>"]
    assert (wrapper / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()


def test_chat_template_writes_kimis_turns(folder: Path) -> None:
    jinja2 = pytest.importorskip("jinja2", reason="comes with torch")
    template = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    text = jinja2.Template(template).render(
        messages=[
            {"role": "system", "content": "S"},
            {"role": "user", "content": [{"type": "text", "text": "U"}]},
            {"role": "assistant", "content": "A"},
        ],
        add_generation_prompt=True,
    )
    assert text == (
        "<|im_system|>system<|im_middle|>S<|im_end|>"
        "<|im_user|>user<|im_middle|>U<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|>A<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|>"
    )
