"""Makes the calls of speculators 0.3.0's generator, in its order and with its faults.

Loaded under that module's name, with a mock ``vllm`` in place. The text is ours; what it calls,
and how, is what the inventory says of 0.3.0.
"""

from __future__ import annotations

import torch
from transformers import AutoTokenizer
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    LoadConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_utils import (
    _get_kv_cache_groups_uniform_spec,
    get_kv_cache_config_from_groups,
    unify_hybrid_kv_cache_specs,
)
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

VLLM_BLOCK_SIZE = 16
EXTENSION = "speculators.data_generation.custom_worker.HiddenStatesWorkerExtension"


class VllmHiddenStatesGenerator:
    def __init__(self, model_path, layer_ids, ranks=1, budget=64):
        self.layer_ids, self.count = layer_ids, 0
        self.tokenizer = AutoTokenizer.from_pretrained(model_path)
        self.vllm_config = VllmConfig(
            model_config=ModelConfig(
                model=model_path,
                tokenizer=model_path,
                trust_remote_code=True,
                dtype="auto",
                max_model_len=512,
                enforce_eager=True,
            ),
            cache_config=CacheConfig(block_size=VLLM_BLOCK_SIZE, gpu_memory_utilization=0.8),
            parallel_config=ParallelConfig(
                tensor_parallel_size=ranks, worker_extension_cls=EXTENSION
            ),
            scheduler_config=SchedulerConfig(
                max_num_seqs=32, max_model_len=512, max_num_batched_tokens=budget
            ),
            device_config=DeviceConfig(),
            load_config=LoadConfig(),
        )
        self.executor = MultiprocExecutor(vllm_config=self.vllm_config)
        self._setup_capture()
        specs = self.executor.collective_rpc("get_kv_cache_spec")[0]
        unify_hybrid_kv_cache_specs(specs)
        free, _ = torch.cuda.mem_get_info()
        kv_cache_config = get_kv_cache_config_from_groups(
            vllm_config=self.vllm_config,
            kv_cache_groups=_get_kv_cache_groups_uniform_spec(specs),
            kv_cache_specs=specs,
            available_memory=int(free * 0.16),
        )
        self.vllm_config.cache_config.num_gpu_blocks = kv_cache_config.num_blocks
        self.scheduler = Scheduler(
            vllm_config=self.vllm_config,
            kv_cache_config=kv_cache_config,
            structured_output_manager=StructuredOutputManager(vllm_config=self.vllm_config),
        )
        self.executor.initialize_from_config([kv_cache_config] * ranks)

    def _setup_capture(self):
        self.executor.collective_rpc("_setup_hidden_states_capture", args=(self.layer_ids,))

    def generate(self, token_ids):
        for number, ids in enumerate(token_ids):
            self.scheduler.add_request(
                Request(
                    request_id=f"req_{self.count}_{number}",
                    prompt_token_ids=ids,
                    sampling_params=SamplingParams(max_tokens=1, temperature=0.0),
                    pooling_params=None,
                    eos_token_id=self.tokenizer.eos_token_id,
                    arrival_time=0.0,
                )
            )
        self.count += 1
        self.executor.collective_rpc("_reset_capture")
        while (step := self.scheduler.schedule()).total_num_scheduled_tokens > 0:
            self.executor.execute_model(step)
            for name in step.num_scheduled_tokens:
                self.scheduler.finish_requests([name], RequestStatus.FINISHED_ABORTED)
        layers = self.executor.collective_rpc("_get_captured_states", unique_reply_rank=0)[0]
        if not layers:
            raise RuntimeError("Failed to capture hidden states from worker")
        results, offset = [], 0
        for ids in token_ids:
            states = [layer[offset : offset + len(ids)].clone().cpu() for layer in layers]
            results.append({"input_ids": ids, "hidden_states": states})
            offset += len(ids)
        torch.cuda.empty_cache()
        return results
