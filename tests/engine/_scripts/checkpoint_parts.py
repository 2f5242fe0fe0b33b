"""Load what lies beside the weights of a wrapper checkpoint, as stacks do; print facts as JSON.

Usage: checkpoint_parts.py MODEL
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main(model: str) -> None:
    from transformers import AutoImageProcessor, AutoTokenizer
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    found: dict[str, Any] = {}
    tokenizer = AutoTokenizer.from_pretrained(model)
    found["tokens"] = tokenizer("héllo <|im_end|>").input_ids
    found["text"] = tokenizer.decode(found["tokens"])
    found["specials"] = [tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id]
    found["placeholder"] = tokenizer.convert_tokens_to_ids("<|media_pad|>")
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    found["chat"] = tokenizer.apply_chat_template(turns, tokenize=False)

    processor = AutoImageProcessor.from_pretrained(model, trust_remote_code=True)
    found["processor"] = type(processor).__name__
    found["media_tokens"] = processor.media_tokens_calculator({"type": "image"})
    patches = processor.preprocess([{"type": "image"}] * 2)
    found["patches"] = [list(patches["pixel_values"].shape), patches["grid_thws"].tolist()]

    # A transformers without kimi_k25 takes the class that auto_map names; this one has its own.
    config = json.loads((Path(model) / "config.json").read_text())
    configuration = get_class_from_dynamic_module(config["auto_map"]["AutoConfig"], model)(**config)
    found["config_layers"] = configuration.text_config.num_hidden_layers
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
