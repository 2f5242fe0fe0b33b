"""A generation-1 engine on the mock: what a right driver of scheduler and executor looks like."""

from __future__ import annotations

import importlib
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Observer = Callable[[Any], None]
_numbers = itertools.count()


def prompt(length: int, start: int = 5) -> list[int]:
    """Token ids; another ``start`` gives another prompt."""
    return [(start * 37 + number * 11) % 500 for number in range(length)]


class Extension:
    """A worker extension that keeps the rows of every step by request."""

    def watch(self, depths: Sequence[int]) -> None:
        model = self.model_runner.model  # type: ignore[attr-defined]
        while not hasattr(model, "layers"):
            model = getattr(model, "model", None) or model.language_model
        self._depths = tuple(depths)
        self._seen: dict[str, list[tuple[int, dict[int, Any]]]] = {}
        self._streams: dict[int, Any] = {}
        for depth in depths:
            layer = model.norm if depth == len(model.layers) else model.layers[depth]
            layer.register_forward_pre_hook(self._hook(depth), with_kwargs=True)

    def keep(self, counts: Mapping[str, int]) -> None:
        """Share the rows of the step that just ran among its requests."""
        batch = self.model_runner.input_batch  # type: ignore[attr-defined]
        offset = 0
        for index, request_id in enumerate(batch.req_ids[: batch.num_reqs]):
            start, count = int(batch.num_computed_tokens_cpu[index]), counts[request_id]
            part = {d: s[offset : offset + count] for d, s in self._streams.items()}
            self._seen.setdefault(request_id, []).append((start, part))
            offset += count

    def rows_of(self, request_id: str) -> dict[int, list[tuple[int, Any]]]:
        parts = self._seen.get(request_id, [])
        return {d: [(start, part[d]) for start, part in parts] for d in self._depths}

    def _hook(self, depth: int) -> Callable[..., None]:
        def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given = dict(zip(("positions", "hidden_states", "residual"), args, strict=False))
            if len(args) == 2:
                given = {"hidden_states": args[0], "residual": args[1]}
            given |= kwargs
            residual = given["residual"]
            hidden = given["hidden_states"]
            self._streams[depth] = hidden if residual is None else hidden + residual

        return hook


def kv_configs(config: Any, specs: Sequence[Any]) -> Any:
    """Plan the cache: in a module of its own from 0.33, which wants the groups too."""
    try:
        kv = importlib.import_module("vllm.v1.core.kv_cache_planning")
    except ImportError:
        kv = importlib.import_module("vllm.v1.core.kv_cache_utils")
    given = [config, specs, [1 << 20] * len(specs)]
    if "global_kv_cache_groups" in inspect.signature(kv.get_kv_cache_configs).parameters:
        given.append(kv.get_kv_cache_groups(config, specs[0]))
    return kv.get_kv_cache_configs(*given)


class Engine:
    """Scheduler and executor of the installed mock."""

    def __init__(
        self,
        *,
        budget: int = 64,
        seats: int = 8,
        reuse: bool = False,
        ranks: int = 1,
        extension: str = f"{__name__}.Extension",
        **scheduler: Any,
    ) -> None:
        config = importlib.import_module("vllm.config")
        keys = {"max_num_seqs": seats, "max_model_len": 512, "max_num_batched_tokens": budget}
        if "is_encoder_decoder" in inspect.signature(config.SchedulerConfig).parameters:
            keys["is_encoder_decoder"] = False
        self.config = config.VllmConfig(
            model_config=config.ModelConfig(model="tiny"),
            cache_config=config.CacheConfig(block_size=16, enable_prefix_caching=reuse),
            parallel_config=config.ParallelConfig(
                tensor_parallel_size=ranks, worker_extension_cls=extension
            ),
            scheduler_config=config.SchedulerConfig(
                **keys, async_scheduling=False, enable_chunked_prefill=True, **scheduler
            ),
        )
        if hasattr(self.config.cache_config, "kv_cache_layout"):
            self.config.cache_config.kv_cache_layout = "LBHNC"
        executor = importlib.import_module("vllm.v1.executor.multiproc_executor")
        self.executor = executor.MultiprocExecutor(vllm_config=self.config)
        specs = self.executor.get_kv_cache_specs()
        self.kv_configs = kv_configs(self.config, specs)
        module = importlib.import_module("vllm.v1.core.sched.scheduler")
        given = {
            "vllm_config": self.config,
            "kv_cache_config": self.kv_configs[0],
            "structured_output_manager": None,
        }
        self.block_size = self.config.cache_config.block_size
        if "block_size" in inspect.signature(module.Scheduler).parameters:
            given["block_size"] = self.block_size
        self.scheduler = module.Scheduler(**given)
        self.reuse = reuse
        self.watched = False

    def watch(self, *depths: int) -> None:
        """Keep the rows at these depths from now on."""
        self.executor.collective_rpc("watch", args=(depths,))
        self.watched = True

    def add(self, tokens: Sequence[int], *, output: int = 1, hashed: bool = True) -> str:
        params = importlib.import_module("vllm.sampling_params").SamplingParams(max_tokens=output)
        module = importlib.import_module("vllm.v1.request")
        request_id = f"r{next(_numbers)}"
        given: dict[str, Any] = {
            "request_id": request_id,
            "prompt_token_ids": list(tokens),
            "sampling_params": params,
            "pooling_params": None,
        }
        if "eos_token_id" in inspect.signature(module.Request).parameters:
            given["eos_token_id"] = None
        if self.reuse and hashed:
            given["block_hasher"] = self.hasher()
        self.scheduler.add_request(module.Request(**given))
        return request_id

    def hasher(self) -> Any:
        kv = importlib.import_module("vllm.v1.core.kv_cache_utils")
        kv.init_none_hash(hash)
        return kv.get_request_block_hasher(self.block_size, lambda value: repr(value).encode())

    def step(self) -> Any:
        """One right step: schedule, execute, sample, update."""
        planned = self.scheduler.schedule()
        output = self.executor.execute_model(planned)
        if self.watched and planned.total_num_scheduled_tokens:
            self.executor.collective_rpc("keep", args=(planned.num_scheduled_tokens,))
        if output is None:
            output = self.executor.sample_tokens(None)
        self.scheduler.update_from_output(planned, output)
        return planned

    def run(self) -> list[Any]:
        steps = []
        while self.scheduler.has_requests():
            steps.append(self.step())
            assert len(steps) < 200
        return steps

    def rows(self, request_id: str, depth: int) -> np.ndarray:
        """The rows that the worker saw, by position; a later pass replaces an earlier one."""
        seen = self.executor.collective_rpc("rows_of", args=(request_id,))[0][depth]
        rows: dict[int, Any] = {}
        for start, part in seen:
            for number, row in enumerate(np.asarray(part)):
                rows[start + number] = row
        return np.array([rows[position] for position in sorted(rows)])

    def runner(self) -> Any:
        return self.executor.collective_rpc(lambda worker: worker.model_runner)[0]
