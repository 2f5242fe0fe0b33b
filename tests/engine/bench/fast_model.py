"""A Qwen3 so small that the engine, not the model, sets the pace: python -m ... FOLDER.

On the tiny Kimi-K2.5 a processor is busy with the experts, and what a connector costs hides
behind them.
"""

from __future__ import annotations

import sys

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

NORM, SPREAD = 0.1, 0.05


def make(folder: str) -> None:
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=6,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=8192,
        bos_token_id=256,
        eos_token_id=257,
        tie_word_embeddings=False,
    )
    model = Qwen3ForCausalLM(config)
    draw = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=draw)
        parameter.data = 1 + NORM * noise if "norm" in name else SPREAD * noise
    model.save_pretrained(folder)


if __name__ == "__main__":
    make(sys.argv[1])
