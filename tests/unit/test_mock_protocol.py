"""Contracts of the mock's engine: the behaviours that broke captures, each on both sides."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from fixtures.mock_vllm import NotFaked, install, uniproc
from harness.seams import releases
from tests.unit.mock_engines import Engine, prompt

RELEASES = releases()


@pytest.fixture(autouse=True)
def first_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests read the batch of the first runner; from 0.29 it must be asked for."""
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")


# Execution


@pytest.mark.parametrize("release", [one for one in RELEASES if one != "0.11.0"])
def test_second_execute_without_sampling_is_refused(release: str) -> None:
    with install(release):
        engine = Engine(budget=16)
        engine.add(prompt(40))
        assert engine.executor.execute_model(engine.scheduler.schedule()) is None
        with pytest.raises(RuntimeError) as refusal:
            engine.executor.execute_model(engine.scheduler.schedule())
        assert "State error: sample_tokens() must be called after execute_model()" in str(
            refusal.value
        )
        assert str(refusal.value).startswith("Worker failed with error '")
        assert engine.executor.sample_tokens(None).sampled_token_ids == [[]]
        assert engine.executor.sample_tokens(None) is None


def test_execute_returned_the_output_itself_in_0_11_0() -> None:
    with install("0.11.0"):
        engine = Engine(budget=16)
        engine.add(prompt(20))
        first = engine.executor.execute_model(engine.scheduler.schedule())
        second = engine.executor.execute_model(engine.scheduler.schedule())
        assert first.sampled_token_ids == [[]]
        assert len(second.sampled_token_ids[0]) == 1
        assert not hasattr(engine.executor, "sample_tokens")


@pytest.mark.parametrize("release", ["0.11.0", "0.16.0", "0.32.0"])
def test_a_step_without_tokens_has_an_empty_output(release: str) -> None:
    with install(release):
        engine = Engine()
        for _ in range(2):
            output = engine.executor.execute_model(engine.scheduler.schedule())
            assert output.req_ids == []
            assert output.sampled_token_ids == []


@pytest.mark.parametrize("release", ["0.16.0", "0.32.0"])
def test_execution_that_does_not_block_gives_a_future(release: str) -> None:
    with install(release):
        engine = Engine()
        engine.add(prompt(4))
        future = engine.executor.execute_model(engine.scheduler.schedule(), non_block=True)
        assert future.result() is None
        assert len(engine.executor.sample_tokens(None, non_block=True).result().req_ids) == 1


@pytest.mark.parametrize(("release", "reply"), [("0.11.0", [0]), ("0.11.1", 0), ("0.32.0", 0)])
def test_one_reply_is_a_list_in_0_11_0_and_bare_after(release: str, reply: Any) -> None:
    with install(release):
        executor = Engine(ranks=2).executor

        def rank(worker: Any) -> int:
            from vllm.distributed import get_tp_group

            return get_tp_group().rank_in_group

        assert executor.collective_rpc(rank) == [0, 1]
        assert executor.collective_rpc(rank, unique_reply_rank=0) == reply


@pytest.mark.parametrize("release", RELEASES)
def test_executor_of_one_process_knows_no_reply_rank(release: str) -> None:
    with install(release):
        executor = uniproc(Engine().config)
        assert executor.collective_rpc(lambda worker: worker.rank) == [0]
        with pytest.raises(TypeError) as refusal:
            executor.collective_rpc("get_model", unique_reply_rank=0)
    assert str(refusal.value) == (
        "UniProcExecutor.collective_rpc() got an unexpected keyword argument 'unique_reply_rank'"
    )


def test_a_worker_that_fails_is_told_of_in_the_releases_words() -> None:
    with install("0.16.0"), pytest.raises(RuntimeError) as refusal:
        Engine().executor.collective_rpc("no_such_method")
    assert str(refusal.value) == (
        "Worker failed with error ''Worker' object has no attribute 'no_such_method'', please"
        " check the stack trace above for the root cause"
    )


class Clashing:
    """An extension with a name that the worker has."""

    def execute_model(self) -> None: ...


def test_an_extension_must_not_cover_the_workers_own_names() -> None:
    with install("0.16.0"), pytest.raises(AssertionError, match="conflicts with"):
        Engine(extension=f"{__name__}.Clashing")


@pytest.mark.parametrize(("release", "rows"), [("0.26.0", 8), ("0.27.0", 0)])
def test_initialising_warmed_up_until_0_26(release: str, rows: int) -> None:
    with install(release):
        engine = Engine(seats=8)
        seen: list[int] = []
        model = engine.runner().model
        model.model.norm.register_forward_pre_hook(lambda module, args: seen.append(len(args[0])))
        engine.executor.initialize_from_config(engine.kv_configs)
        assert sum(seen) == rows
        if not rows:
            engine.executor.compile_or_warm_up_model()
            assert sum(seen) == 8


def test_a_model_that_fails_in_the_warm_up_fails_in_a_worker() -> None:
    with install("0.16.0"):
        engine = Engine()
        body = engine.runner().model.model
        body.forward = lambda *args: body.get_input_embeddings(args[0])
        with pytest.raises(RuntimeError, match=r"^Worker failed with error ''DeepseekV2Model' obj"):
            engine.executor.initialize_from_config(engine.kv_configs)


@pytest.mark.parametrize(("release", "refuses"), [("0.28.0", False), ("0.29.0", True)])
def test_cache_layout_must_be_resolved_from_0_29(release: str, refuses: bool) -> None:
    with install(release):
        engine = Engine()
        if not refuses:
            engine.executor.initialize_from_config(engine.kv_configs)
            return
        engine.config.cache_config.kv_cache_layout = None
        with pytest.raises(ValueError, match="KV cache layout has not been resolved yet"):
            engine.executor.initialize_from_config(engine.kv_configs)


@pytest.mark.parametrize(
    ("release", "asked", "name"),
    [
        ("0.28.0", None, "vllm.v1.worker.gpu_model_runner"),
        ("0.29.0", None, "vllm.v1.worker.gpu.model_runner"),
        ("0.29.0", "0", "vllm.v1.worker.gpu_model_runner"),
        ("0.16.0", "1", "vllm.v1.worker.gpu.model_runner"),
    ],
)
def test_second_runner_is_the_wrappers_default_from_0_29(
    release: str, asked: str | None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER")
    if asked is not None:
        monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", asked)
    with install(release, kimi=True):
        runner = Engine().runner()
        assert type(runner).__module__ == name
        assert hasattr(runner, "requests") is (name == "vllm.v1.worker.gpu_model_runner")


# Configuration


@pytest.mark.parametrize(
    ("release", "platform", "resolved"),
    [
        ("0.13.0", "cuda", False),
        ("0.14.0", "cuda", True),
        ("0.14.0", "cpu", False),
        ("0.32.0", "cuda", True),
    ],
)
def test_async_scheduling_is_on_by_default_from_0_14_but_not_on_cpu(
    release: str, platform: Any, resolved: bool
) -> None:
    with install(release, platform=platform):
        from vllm.config import SchedulerConfig, VllmConfig

        config = VllmConfig(
            scheduler_config=SchedulerConfig(max_model_len=64, is_encoder_decoder=False)
        )
        assert config.scheduler_config.async_scheduling is resolved


@pytest.mark.parametrize(
    ("release", "platform", "size"),
    [("0.17.1", "cuda", 64), ("0.18.0", "cuda", 16), ("0.17.1", "cpu", 16)],
)
def test_block_size_of_mla_was_overwritten_until_0_17(
    release: str, platform: Any, size: int
) -> None:
    with install(release, platform=platform):
        engine = Engine()
        assert engine.config.cache_config.block_size == size
        assert engine.kv_configs[0]._groups[0].kv_cache_spec.block_size == size


@pytest.mark.parametrize(("release", "raises"), [("0.13.0", False), ("0.14.0", True)])
def test_current_configuration_must_be_set_from_0_14(release: str, raises: bool) -> None:
    with install(release):
        from vllm.config import VllmConfig, get_current_vllm_config, set_current_vllm_config

        config = Engine().config
        with set_current_vllm_config(config):
            assert get_current_vllm_config() is config
        if raises:
            with pytest.raises(AssertionError, match=r"Current vLLM config is not set\."):
                get_current_vllm_config()
            return
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert isinstance(get_current_vllm_config(), VllmConfig)
        assert len(told) == 1


def test_groups_exist_in_workers_only() -> None:
    with install("0.16.0"):
        from vllm.distributed import get_pp_group, get_tp_group

        for group in (get_pp_group, get_tp_group):
            with pytest.raises(AssertionError, match="parallel group is not initialized"):
                group()


def test_other_keywords_of_llm_are_judged_as_engine_arguments() -> None:
    with install("0.16.0") as vllm:
        vllm.LLM("tiny", enable_prefix_caching=False)
        with pytest.raises(TypeError) as refusal:
            vllm.LLM("tiny", no_such_argument=1)
        assert str(refusal.value) == (
            "EngineArgs.__init__() got an unexpected keyword argument 'no_such_argument'"
        )
        with pytest.raises(NotFaked, match="only binds the call"):
            vllm.LLM("tiny").generate([])
