"""Load a plain model through transformers' Auto classes and write its prompt log-probabilities.

Usage: hf_logprobs.py MODEL PROMPTS.json OUT.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(model: str, prompts: str, out: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    module, report = AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.float32, output_loading_info=True
    )
    problems = {key: sorted(map(str, found)) for key, found in report.items() if found}
    if problems:
        raise SystemExit(
            f"{type(module).__name__} does not take the checkpoint as it is: {problems}"
        )
    module.eval()
    found = []
    for ids in json.loads(Path(prompts).read_text()):
        with torch.inference_mode():
            logits = module(torch.tensor([ids])).logits[0, :-1].double()
        rows = torch.log_softmax(logits, dim=-1)
        found.append(rows.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist())
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
