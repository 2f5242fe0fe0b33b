"""Runs in the engine's interpreter: is the last sample written with the engine in-process?

``in_process.py MODEL FOLDER``; the environment has VLLM_ENABLE_V1_MULTIPROCESSING=0. Prints one
JSON object as ``probes.py`` does.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from probes import Fault, judge

WAIT_S = 10.0
"""A write takes milliseconds; without another step none will come."""


def in_process_engine_writes_the_last_sample() -> None:
    """Once ``generate`` has returned, the file that it names is there or soon comes."""
    from vllm import LLM, SamplingParams

    model, folder = sys.argv[1:]
    llm = LLM(
        model=model,
        language_model_only=True,
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=64,
        max_num_batched_tokens=2048,
        max_num_seqs=4,
        block_size=16,
        kv_cache_memory_bytes=64 << 20,
        compilation_config={"custom_ops": ["-rotary_embedding", "all"]},
        attention_backend="CPU_MLA",
        distributed_executor_backend="mp",
        speculative_config={
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [1, 3]}},
        },
        kv_transfer_config={
            "kv_connector": "PlainConnector",
            "kv_connector_module_path": "plain_connector",
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {
                "shared_storage_path": folder,
                "use_synchronization_lock": False,
            },
        },
    )
    core = llm.llm_engine.engine_core.engine_core
    (done,) = llm.generate(
        [{"prompt_token_ids": list(range(1, 20))}],
        SamplingParams(max_tokens=1, temperature=0),
        use_tqdm=False,
    )
    sample = Path(done.kv_transfer_params["hidden_states_path"])
    end = time.monotonic() + WAIT_S
    while not sample.exists() and time.monotonic() < end:
        time.sleep(0.1)
    if sample.exists():
        return
    # The cause: the save goes out with a step that nobody takes any more.
    for steps in range(1, 10):
        core.step_fn()
        if sample.exists():
            raise Fault(f"{sample.name} is not written before {steps} more steps of the engine")
    raise AssertionError(f"{sample.name} is never written")


if __name__ == "__main__":
    probe = in_process_engine_writes_the_last_sample
    print(json.dumps({probe.__name__: judge(probe)}))
