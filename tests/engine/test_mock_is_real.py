"""The mock beside the releases that it stands for: the same refusals, in the same words."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fixtures.mock_vllm import install

LANES = (("gen1", "0.16.0"), ("gen2", "0.32.0"))
ROOT = Path(__file__).parents[2]

# Executed here on the mock and by each lane's interpreter on the real one. A case that the
# release refuses gives the error's name and text, one that it accepts gives None.
_CASES = r"""
import inspect
from vllm.config import CacheConfig, ParallelConfig, SchedulerConfig, get_current_vllm_config
from vllm.distributed import get_pp_group, get_tp_group
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.models.interfaces import supports_eagle3
from vllm.sampling_params import SamplingParams
from vllm.sequence import IntermediateTensors
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils as kv
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.executor.uniproc_executor import UniProcExecutor
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

def request(**more):
    given = dict(request_id="r", prompt_token_ids=[1] * 40, pooling_params=None)
    return Request(**{**given, "sampling_params": SamplingParams(max_tokens=1), **more})

eos = {"eos_token_id": 2} if "eos_token_id" in inspect.signature(Request).parameters else {}
sha = get_hash_fn_by_name("sha256")
limits = dict(max_num_seqs=32, max_model_len=64, max_num_batched_tokens=64)
cases = {
    "scheduler config of 0.3.0": lambda: SchedulerConfig(**limits),
    "scheduler config bare": lambda: SchedulerConfig(),
    "scheduler config unknown": lambda: SchedulerConfig(max_model_len=64, foo="bar"),
    "scheduler config right": lambda: SchedulerConfig(**limits, is_encoder_decoder=False),
    "cache config unknown": lambda: CacheConfig(foo=1, bar=2),
    "cache config noinit": lambda: CacheConfig(num_gpu_blocks=1),
    "parallel config unknown": lambda: ParallelConfig(foo=None),
    "scheduler without block size": lambda: Scheduler(
        vllm_config=1, kv_cache_config=1, structured_output_manager=1),
    "scheduler bare": lambda: Scheduler(),
    "cache with specs": lambda: kv.get_kv_cache_config_from_groups(
        vllm_config=1, kv_cache_groups=[], kv_cache_specs={}, available_memory=1),
    "request with eos": lambda: request(eos_token_id=2),
    "request without eos": lambda: request(),
    "request of nothing": lambda: request(sampling_params=None, **eos),
    "hashed before the none hash": lambda: request(
        **eos, block_hasher=kv.get_request_block_hasher(16, sha)),
    "hash of no name": lambda: get_hash_fn_by_name("foo"),
    "sampling unknown": lambda: SamplingParams(foo=1),
    "sampling right": lambda: SamplingParams(max_tokens=1, temperature=0.0),
    "executor bare": lambda: MultiprocExecutor(),
    "uniproc reply rank": lambda: UniProcExecutor.collective_rpc(
        None, "m", unique_reply_rank=0),
    "manager bare": lambda: StructuredOutputManager(),
    "tensors bare": lambda: IntermediateTensors(),
    "output bare": lambda: ModelRunnerOutput(),
    "arguments unknown": lambda: EngineArgs(foo=1),
    "eagle bare": lambda: supports_eagle3(),
    "current too many": lambda: get_current_vllm_config(1),
    "tensor group": lambda: get_tp_group(),
    "pipeline group": lambda: get_pp_group(),
    "tensor rank": lambda: get_tensor_model_parallel_rank(),
    "no such method": lambda: Scheduler.no_such_method,
    "aborted": lambda: RequestStatus.FINISHED_ABORTED,
}
def told(case):
    try:
        case()
    except Exception as error:
        return [type(error).__name__, str(error)]
told = {name: told(case) for name, case in cases.items()}
def shape(called):
    parameters = inspect.signature(called).parameters.values()
    return [[p.name, p.kind.name, p.default is p.empty] for p in parameters]
called = [Scheduler, Scheduler.schedule, Scheduler.add_request, Scheduler.finish_requests,
    Scheduler.update_from_output, Request, MultiprocExecutor, MultiprocExecutor.execute_model,
    MultiprocExecutor.collective_rpc, MultiprocExecutor.sample_tokens, supports_eagle3,
    MultiprocExecutor.initialize_from_config, UniProcExecutor.collective_rpc,
    StructuredOutputManager, SamplingParams, ModelRunnerOutput, EngineArgs, SchedulerConfig,
    CacheConfig, kv.get_kv_cache_config_from_groups, kv.get_kv_cache_configs,
    kv.get_kv_cache_groups, kv.get_request_block_hasher, kv.init_none_hash]
shapes = {f"{one.__module__}:{one.__qualname__}": shape(one) for one in called}
"""
_REPORT = """
import json
print("ANSWER" + json.dumps({"told": told, "shapes": shapes}))
"""


def ask_real(python: Path, folder: Path) -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {
        "PYDANTIC_ERRORS_INCLUDE_URL": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        [python, "-c", _CASES + _REPORT],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWER")]
    assert lines, f"{python} ended with {done.returncode}: {done.stderr[-2000:]}"
    answer: dict[str, Any] = json.loads(lines[-1].removeprefix("ANSWER"))
    return answer


def ask_mock(release: str) -> dict[str, Any]:
    space: dict[str, Any] = {}
    with install(release):
        exec(compile(_CASES, "<cases>", "exec"), space)
    return {"told": space["told"], "shapes": space["shapes"]}


@pytest.mark.engine
@pytest.mark.parametrize(("lane", "release"), LANES)
def test_mock_refuses_and_takes_what_the_real_release_does(
    lane: str, release: str, tmp_path: Path
) -> None:
    python = ROOT / ".venv" / lane / "bin" / "python"
    if not python.exists():
        pytest.skip(f"lane {lane} is not made: make {lane}")
    real, mock = ask_real(python, tmp_path), ask_mock(release)
    assert mock["told"] == real["told"]
    assert mock["shapes"] == real["shapes"]
    refused = {name for name, told in real["told"].items() if told is not None}
    assert {
        "scheduler config of 0.3.0",
        "scheduler without block size",
        "cache with specs",
        "request with eos" if lane == "gen2" else "request without eos",
    } <= refused
