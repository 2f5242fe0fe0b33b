"""A tokenizer that encodes any text: bytes, plus Kimi's special tokens, and no merges.

Ids 0 to 255 are bytes (in the order of their printable stand-ins), the last 256 ids of the
vocabulary are Kimi's specials. So token counts equal UTF-8 byte counts, and every id that can
appear in a prompt has a text.
"""

from __future__ import annotations

from typing import Any

from harness.models._kimi import SPECIAL_OFFSETS, SPECIAL_TOKENS, KimiShape

# The roles' turns look as in Kimi's chats: role marker, role name, middle marker, text, end.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'assistant' -%}<|im_assistant|>"
    "{%- elif message['role'] == 'user' -%}<|im_user|>"
    "{%- else -%}<|im_system|>{%- endif -%}"
    "{{ message['role'] }}<|im_middle|>"
    "{%- if message['content'] is string -%}{{ message['content'] }}"
    "{%- else -%}{%- for part in message['content'] -%}"
    "{%- if part['type'] == 'text' -%}{{ part['text'] }}"
    "{%- else -%}<|media_begin|>image<|media_content|><|media_pad|><|media_end|>{%- endif -%}"
    "{%- endfor -%}{%- endif -%}"
    "<|im_end|>"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|>{%- endif -%}"
)


def byte_alphabet() -> list[str]:
    """Return the printable stand-in of each byte, by byte value.

    Byte-level BPE gives bytes that print (in Latin-1) their own character and the others
    the characters from U+0100 on, in order.
    """
    printing = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in printing else next(spare)) for byte in range(256)]


def special_tokens(shape: KimiShape) -> dict[int, str]:
    """Return every special token by id; ids without a known name are reserved ones."""
    names = {offset: token for token, offset in SPECIAL_OFFSETS.items()}
    start = shape.special_tokens_start
    return {
        start + offset: names.get(offset, f"<|reserved_token_{start + offset}|>")
        for offset in range(SPECIAL_TOKENS)
    }


def tokenizer_json(shape: KimiShape) -> dict[str, Any]:
    """Return the content of ``tokenizer.json`` (the ``tokenizers`` library's format 1.0)."""
    specials = special_tokens(shape)
    vocab = {character: byte for byte, character in enumerate(byte_alphabet())}
    vocab.update({token: id_ for id_, token in specials.items()})
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": id_,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for id_, token in specials.items()
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [],
        },
    }


def tokenizer_config(shape: KimiShape) -> dict[str, Any]:
    """Return the content of ``tokenizer_config.json``, chat template included."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "[BOS]",
        "eos_token": "[EOS]",
        "unk_token": "[UNK]",
        "pad_token": "[PAD]",
        "model_max_length": shape.max_position_embeddings,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
        "added_tokens_decoder": {
            str(id_): {
                "content": token,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": True,
            }
            for id_, token in special_tokens(shape).items()
        },
    }
