"""Runs in the engine's interpreter: one JSON object, probe name -> what upstream does.

A probe returns where upstream behaves, raises :class:`Fault` where it shows the fault that the
probe is about, and :class:`NotHere` where this platform cannot tell. Anything else that it
raises is a probe that broke, which must not pass for the fault.
"""

from __future__ import annotations

import json
import tempfile
import traceback
import types
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch

LAYERS = 4


class Fault(Exception):
    """The fault, as described."""


class NotHere(Exception):
    """This platform cannot show it."""


def cpu_rotary_rotates_every_head() -> None:
    """The compiled rotary op on [tokens, heads, dim] equals the one on [tokens, heads * dim]."""
    platform = _on_cpu()
    # The platform picks the build for this processor; another one ends in SIGILL.
    platform.import_kernels()
    tokens, heads, dim = 6, 4, 64
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(tokens, heads, dim, generator=generator)
    key = torch.randn(tokens, 1, dim, generator=generator)
    angles = torch.outer(torch.arange(16.0), 10000.0 ** (-torch.arange(0, dim, 2) / dim))
    cache = torch.cat((angles.cos(), angles.sin()), dim=-1)
    positions = torch.arange(tokens)
    flat_query, flat_key = query.reshape(tokens, -1).clone(), key.reshape(tokens, -1).clone()
    rotate = torch.ops._C.rotary_embedding
    rotate(positions, flat_query, flat_key, dim, cache, False)
    rotate(positions, query, key, dim, cache, False)
    if not torch.allclose(query.reshape(tokens, -1), flat_query, atol=1e-5):
        raise Fault("three axes are rotated otherwise than two")


def stock_connector_saves_no_aborted_request() -> None:
    """A request aborted before its prompt was computed has no rows to save."""
    from vllm.v1.request import RequestStatus

    request = types.SimpleNamespace(
        request_id="r",
        kv_transfer_params={},
        prompt_token_ids=[1, 2, 3],
        all_token_ids=[1, 2, 3],
        status=RequestStatus.FINISHED_ABORTED,
        num_computed_tokens=0,
    )
    with tempfile.TemporaryDirectory() as folder:
        connector = _connector(Path(folder))
        connector.request_finished(request, [0])
        if connector._pending_saves:
            raise Fault("three rows are to be saved, none was computed")


def stock_connector_reports_a_failed_write() -> None:
    """A failed write reaches somebody other than the log."""
    failed: Future[None] = Future()
    failed.set_exception(OSError(28, "No space left on device"))
    with tempfile.TemporaryDirectory() as folder:
        connector = _connector(Path(folder))
        before = dict(vars(connector))
        try:
            connector._on_write_done("r", failed)
        except OSError:
            return
        if dict(vars(connector)) == before:
            raise Fault("nothing but the log tells of it")


def stock_connector_runs_on_a_cpu() -> None:
    """The rows of a finished request reach its file, on the devices that vLLM supports."""
    _on_cpu()
    import vllm.v1.worker.cpu.shm  # noqa: F401  # what the CPU worker does to torch.cuda
    from safetensors.torch import load_file

    with tempfile.TemporaryDirectory() as folder:
        connector = _connector(Path(folder))
        pending = _pending(connector)
        try:
            connector._submit_async_write(pending)
        except RuntimeError as error:
            if "pin_memory" in str(error):
                raise Fault(f"{error}") from error
            raise
        connector._executor.shutdown()
        rows = load_file(pending.filename)["hidden_states"]
        assert torch.equal(rows, connector._kv_cache[0].transpose(0, 1)[:3])


def stock_connector_leaves_no_lock_file() -> None:
    """Once a sample is written, no file but the sample is there."""
    with tempfile.TemporaryDirectory() as folder:
        connector = _connector(Path(folder))
        sample = Path(_lock_as_for_a_new_request(connector))
        connector._write_tensors(
            {"token_ids": torch.arange(3)},
            types.SimpleNamespace(synchronize=lambda: None),
            str(sample),
            connector._lock_fds.pop("r", None),
        )
        connector.get_finished({"r"})
        assert sample.is_file()
        left = sorted(path.name for path in Path(folder).iterdir() if path != sample)
        if left == ["r.safetensors.lock"]:
            raise Fault(f"{left} stays")
        assert not left, left


def stock_connector_takes_no_lock_on_the_step_path() -> None:
    """The step that first sees a request takes no file lock for it."""
    with tempfile.TemporaryDirectory() as folder:
        connector = _connector(Path(folder))
        _lock_as_for_a_new_request(connector)
        if "r" in connector._lock_fds:
            raise Fault("wait_for_save holds a lock for the request")


def native_capture_keeps_the_asked_order() -> None:
    """DeepSeek's rows come back in the order of the ids, not in ascending order."""
    assert _captured((1, 3)) == [1.0, 3.0]
    found = _captured((3, 1))
    if found == [1.0, 3.0]:
        raise Fault("ids 3, 1 come back as 1, 3")
    assert found == [3.0, 1.0], found


def native_capture_refuses_an_id_beyond_the_last() -> None:
    """An id that no layer has is refused, or at least gives no rows."""
    try:
        found = _captured((2, LAYERS + 3))
    except ValueError:
        return
    if found == [2.0, 2.0]:
        raise Fault(f"id {LAYERS + 3} of {LAYERS} layers is answered with the rows of id 2")
    raise AssertionError(found)


def native_capture_survives_an_id_given_twice() -> None:
    """The same id twice is refused by name or answered twice; the step does not fail."""
    try:
        found = _captured((1, 1, 3))
    except ValueError:
        return
    except RuntimeError as error:
        if "expanded size of the tensor (3)" in str(error):
            raise Fault(f"two columns for a place of three: {error}") from error
        raise
    assert found == [1.0, 1.0, 3.0], found


def native_capture_gives_the_embeddings_for_id_0() -> None:
    """Id 0 of DeepSeek is what enters its first layer, as with other models."""
    try:
        found = _captured((0, 2))
    except ValueError:
        return
    except TypeError as error:
        if "NoneType" in str(error):
            raise Fault(f"{error}") from error
        raise
    assert found == [0.0, 2.0], found


def mla_on_cpu_schedules_a_prompt_beyond_the_budget() -> None:
    """A prompt that the engine accepts is scheduled at some time, whole or in parts."""
    _on_cpu()
    budget, tokens, steps = 32, 64, 50
    with tempfile.TemporaryDirectory() as folder:
        scheduler = _scheduler(Path(folder), budget=budget, max_model_len=128)
        assert scheduler.vllm_config.model_config.use_mla
        # The same scheduler takes a prompt within the budget, so it does work.
        scheduler.add_request(_request("short", budget))
        assert scheduler.schedule().num_scheduled_tokens == {"short": budget}
        scheduler.finish_requests("short", _aborted())
        scheduler.add_request(_request("long", tokens))
        told = [scheduler.schedule().total_num_scheduled_tokens for _ in range(steps)]
        if not any(told) and scheduler.has_unfinished_requests():
            raise Fault(f"{steps} steps schedule nothing and the prompt of {tokens} tokens waits")
        assert any(told), told


PROBES: tuple[Callable[[], None], ...] = (
    cpu_rotary_rotates_every_head,
    stock_connector_saves_no_aborted_request,
    stock_connector_reports_a_failed_write,
    stock_connector_runs_on_a_cpu,
    stock_connector_leaves_no_lock_file,
    stock_connector_takes_no_lock_on_the_step_path,
    native_capture_keeps_the_asked_order,
    native_capture_refuses_an_id_beyond_the_last,
    native_capture_survives_an_id_given_twice,
    native_capture_gives_the_embeddings_for_id_0,
    mla_on_cpu_schedules_a_prompt_beyond_the_budget,
)


def _on_cpu() -> Any:
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        raise NotHere("needs vLLM for CPU")
    return current_platform


def _connector(folder: Path) -> Any:
    """The stock connector without an engine around it; what a probe does not need is not set."""
    from concurrent.futures import ThreadPoolExecutor

    from vllm.distributed.kv_transfer.kv_connector.v1 import (
        example_hidden_states_connector as stock,
    )

    connector = object.__new__(stock.ExampleHiddenStatesConnector)
    connector._pending_saves, connector._req_futures = {}, {}
    connector._request_filenames = {"r": str(folder / "r.safetensors")}
    connector._is_tp_rank_zero, connector.use_lock, connector._lock_fds = True, True, {}
    connector._copy_stream, connector._req_copy_events = None, {}
    connector._accumulated_finished_req_ids = set()
    connector._connector_metadata = None
    connector._executor = ThreadPoolExecutor(1)
    return connector


def _pending(connector: Any) -> Any:
    from vllm.distributed.kv_transfer.kv_connector.v1 import (
        example_hidden_states_connector as stock,
    )

    # [blocks, columns, block size, hidden]
    connector._kv_cache, connector._block_size = torch.randn(1, 2, 16, 8), 16
    return stock.PendingSave("r", connector._request_filenames["r"], torch.arange(3), [0])


def _lock_as_for_a_new_request(connector: Any) -> str:
    from vllm.distributed.kv_transfer.kv_connector.v1 import (
        example_hidden_states_connector as stock,
    )

    name: str = connector._request_filenames["r"]
    metadata = stock.ExampleHiddenStatesConnectorMetadata(new_req_filenames={"r": name})
    connector.bind_connector_metadata(metadata)
    connector.wait_for_save()
    connector.clear_connector_metadata()
    return name


def _captured(ids: tuple[int, ...]) -> list[float]:
    """Return the first value of each captured column.

    vLLM's own capture from end to end, its layers and its cache replaced: layer k makes k + 1
    of k, so the column of id k is k everywhere.
    """
    from vllm.model_executor.models import deepseek_v2
    from vllm.v1.spec_decode import extract_hidden_states as proposer_module

    tokens, hidden = 3, 8
    backbone = types.SimpleNamespace(
        config=types.SimpleNamespace(),
        hidden_size=hidden,
        start_layer=0,
        end_layer=LAYERS,
        layers=[_Layer() for _ in range(LAYERS)],
        norm=lambda states, residual: (states, residual),
        embed_input_ids=lambda ids: torch.zeros(len(ids), hidden),
    )
    owner = types.SimpleNamespace(model=backbone)
    deepseek_v2.DeepseekV2ForCausalLM.set_aux_hidden_state_layers(owner, ids)
    alone = types.SimpleNamespace(is_first_rank=True, is_last_rank=True)
    with mock.patch.object(deepseek_v2, "get_pp_group", return_value=alone):
        _, columns = deepseek_v2.DeepseekV2Model.forward(
            backbone, torch.arange(tokens), torch.arange(tokens), None
        )
    taken: list[torch.Tensor] = []
    proposer = object.__new__(proposer_module.ExtractHiddenStatesProposer)
    proposer.num_speculative_tokens, proposer.num_hidden_states = 1, len(ids)
    proposer.hidden_states = torch.full((2 * tokens, len(ids), hidden), -1.0)
    proposer.attn_layer_names, proposer.eplb_state, proposer.vllm_config = [], None, None
    proposer.attn_metadata_builder = mock.Mock()
    proposer.model = lambda hidden_states: taken.append(hidden_states.clone())
    with (
        mock.patch.object(proposer_module, "set_forward_context", return_value=nullcontext()),
        mock.patch.object(
            proposer, "_determine_batch_execution_and_padding", return_value=(None, tokens, None)
        ),
        mock.patch.object(proposer, "_get_slot_mapping", return_value={}),
    ):
        proposer.propose(1, torch.zeros(1, 1, dtype=torch.long), columns, mock.Mock())
    (stored,) = taken
    assert stored.shape == (tokens, len(ids), hidden), stored.shape
    assert all(bool((column == column[0, 0]).all()) for column in stored.unbind(1)), stored
    return [float(column[0, 0]) for column in stored.unbind(1)]


class _Layer:
    """A decoder layer that adds one, with the sum split over both streams as vLLM has it."""

    use_sequence_parallel_moe = False

    def __call__(
        self, positions: torch.Tensor, states: torch.Tensor, residual: Any, scaling: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        before = states if residual is None else states + residual
        return torch.ones_like(before), before


def _scheduler(folder: Path, *, budget: int, max_model_len: int) -> Any:
    """vLLM's scheduler for a latent-attention model with native capture, as an engine has it."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, MLAAttentionSpec
    from vllm.v1.structured_output import StructuredOutputManager

    (folder / "config.json").write_text(json.dumps(_DEEPSEEK))
    config = EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=max_model_len,
        max_num_batched_tokens=budget,
        max_num_seqs=4,
        block_size=16,
        kv_cache_memory_bytes=1 << 20,
        speculative_config={
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [1, 2]}},
        },
    ).create_engine_config()
    spec = MLAAttentionSpec(block_size=16, num_kv_heads=1, head_size=576, dtype=torch.float32)
    blocks = 64
    config.cache_config.num_gpu_blocks = blocks
    return Scheduler(
        config,
        KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
        StructuredOutputManager(config),
        block_size=16,
    )


def _request(name: str, tokens: int) -> Any:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    return Request(name, list(range(tokens)), SamplingParams(max_tokens=1), None)


def _aborted() -> Any:
    from vllm.v1.request import RequestStatus

    return RequestStatus.FINISHED_ABORTED


_DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 128,
    "intermediate_size": 256,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "torch_dtype": "float32",
}


def judge(probe: Callable[[], None]) -> dict[str, str]:
    """Run one probe: ``verdict`` is right, fault, not here or broken; ``why`` says why."""
    try:
        probe()
    except Fault as fault:
        return {"verdict": "fault", "why": str(fault)}
    except NotHere as reason:
        return {"verdict": "not here", "why": str(reason)}
    except Exception:
        return {"verdict": "broken", "why": traceback.format_exc()[-3000:]}
    return {"verdict": "right", "why": ""}


if __name__ == "__main__":
    print(json.dumps({probe.__name__: judge(probe) for probe in PROBES}))
