"""Load a model in vLLM as it is, without the harness, and write its prompt log-probabilities.

Usage: plain_logprobs.py MODEL PROMPTS.json OUT.json ENGINE_ARGUMENTS.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(model: str, prompts: str, out: str, arguments: str) -> None:
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=model,
        dtype="float32",
        enforce_eager=True,
        enable_prefix_caching=False,
        max_model_len=256,
        max_num_batched_tokens=512,
        max_num_seqs=8,
        kv_cache_memory_bytes=64 << 20,
        **json.loads(arguments),
    )
    ids = json.loads(Path(prompts).read_text())
    sampling = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in ids], sampling)
    found = [
        [
            row[token].logprob
            for token, row in zip(prompt[1:], output.prompt_logprobs[1:], strict=True)
        ]
        for prompt, output in zip(ids, outputs, strict=True)
    ]
    part = Path(f"{out}.part")
    part.write_text(json.dumps(found))
    part.replace(out)


if __name__ == "__main__":  # vLLM spawns its workers from this module
    main(*sys.argv[1:])
