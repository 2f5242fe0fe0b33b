"""Contracts of the mock vllm: it has what a release was recorded to have, and refuses the rest."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from fixtures.mock_vllm import NotFaked, ValidationError, install
from harness.seams import BY_ID, Call, Consumer, Kind, bind, bind_call, recorded, releases, used_by

RELEASES = releases()
V03 = Consumer.SPECULATORS_0_3
_REFUSALS = ("needs-argument", "unknown-keyword", "too-many-arguments")


def reach(path: str) -> Any:
    """Import what ``module:Class.member`` names, as a consumer would."""
    module, _, dotted = path.partition(":")
    found: Any = importlib.import_module(module)
    for name in dotted.split(".") if dotted else ():
        found = getattr(found, name)
    return found


def make_call(target: Any, kind: Kind, call: Call) -> None:
    """Make a call of that shape, for what it is worth without values."""
    instance = [None] if kind is Kind.METHOD else []
    target(*instance, *[None] * call.positional, **dict.fromkeys(call.keywords))


@pytest.fixture
def release_016() -> Iterator[ModuleType]:
    with install("0.16.0") as vllm:
        yield vllm


# Calls


@pytest.mark.parametrize("release", RELEASES)
def test_calls_of_speculators_are_accepted_where_they_bind_and_refused_by_name_elsewhere(
    release: str,
) -> None:
    surface = recorded(release)
    accepted = refused = 0
    with install(release, signatures_only=True):
        for seam in used_by(V03):
            use, entry = seam.use(V03), surface.entry(seam.id)
            assert use is not None
            if entry.missing or not set(use.paths or seam.paths) & set(entry.paths):
                continue
            target = reach(entry.paths[0]) if use.calls else None
            for call in use.calls:
                signature = entry.parsed()
                assert signature is not None
                problem = bind_call(signature, call)
                if problem is None:
                    make_call(target, seam.kind, call)
                    accepted += 1
                    continue
                with pytest.raises((TypeError, ValidationError)) as refusal:
                    make_call(target, seam.kind, call)
                assert problem[1] in str(refusal.value)
                refused += 1
    assert accepted >= 25
    assert refused == sum(one.kind in _REFUSALS for one in bind(surface, [V03]))


@pytest.mark.parametrize("release", RELEASES)
def test_every_recorded_name_is_there_and_every_missing_one_is_refused(release: str) -> None:
    with install(release):
        for seam, entry in recorded(release).entries.items():
            if entry.missing:
                for path in BY_ID[seam].paths:
                    with pytest.raises((AttributeError, ImportError)) as refusal:
                        reach(path)
                    told = f"{refusal.value} {getattr(refusal.value, '__notes__', '')}"
                    assert f"recorded vLLM {release}" in told
            elif entry.kind not in ("field", "noinit", "initvar", "attribute"):
                for path in entry.paths:
                    reach(path)


@pytest.mark.parametrize(
    ("release", "kind", "text"),
    [
        ("0.11.0", None, ""),
        ("0.11.2", None, ""),
        (
            "0.12.0",
            ValidationError,
            "1 validation error for SchedulerConfig\n"
            "is_encoder_decoder\n"
            "  Field required [type=missing, input_value=ArgsKwargs((), {'max_num_..."
            "um_batched_tokens': 64}), input_type=ArgsKwargs]",
        ),
    ],
)
def test_scheduler_config_asks_for_is_encoder_decoder_from_0_12(
    release: str, kind: type[Exception] | None, text: str
) -> None:
    with install(release):
        from vllm.config import SchedulerConfig

        if kind is None:
            SchedulerConfig(max_num_seqs=32, max_model_len=64, max_num_batched_tokens=64)
            return
        with pytest.raises(kind) as refusal:
            SchedulerConfig(max_num_seqs=32, max_model_len=64, max_num_batched_tokens=64)
    assert str(refusal.value) == text


def test_a_configuration_tells_of_every_fault_at_once(release_016: ModuleType) -> None:
    from vllm.config import SchedulerConfig

    with pytest.raises(ValidationError) as refusal:
        SchedulerConfig(max_model_len=64, foo=1)
    assert str(refusal.value) == (
        "2 validation errors for SchedulerConfig\n"
        "is_encoder_decoder\n"
        "  Field required [type=missing, input_value=ArgsKwargs((), {'max_model_len': 64, 'foo':"
        " 1}), input_type=ArgsKwargs]\n"
        "foo\n"
        "  Unexpected keyword argument [type=unexpected_keyword_argument, input_value=1,"
        " input_type=int]"
    )


@pytest.mark.parametrize(("release", "refuses"), [("0.11.0", False), ("0.11.1", True)])
def test_scheduler_asks_for_the_block_size_from_0_11_1(release: str, refuses: bool) -> None:
    with install(release, signatures_only=True):
        from vllm.v1.core.sched.scheduler import Scheduler

        keys: dict[str, Any] = dict.fromkeys(
            ("vllm_config", "kv_cache_config", "structured_output_manager")
        )
        if not refuses:
            Scheduler(**keys)
            return
        with pytest.raises(TypeError) as refusal:
            Scheduler(**keys)
    assert str(refusal.value) == (
        "Scheduler.__init__() missing 1 required positional argument: 'block_size'"
    )


@pytest.mark.parametrize(("release", "refuses"), [("0.11.2", False), ("0.12.0", True)])
def test_cache_configuration_takes_no_specs_from_0_12(release: str, refuses: bool) -> None:
    with install(release, signatures_only=True):
        from vllm.v1.core.kv_cache_utils import get_kv_cache_config_from_groups

        keys: dict[str, Any] = dict.fromkeys(
            ("vllm_config", "kv_cache_groups", "kv_cache_specs", "available_memory")
        )
        if not refuses:
            get_kv_cache_config_from_groups(**keys)
            return
        with pytest.raises(TypeError) as refusal:
            get_kv_cache_config_from_groups(**keys)
    # Python 3.13 goes on with a guess at what was meant.
    assert str(refusal.value).startswith(
        "get_kv_cache_config_from_groups() got an unexpected keyword argument 'kv_cache_specs'"
    )


@pytest.mark.parametrize(("release", "takes"), [("0.16.0", True), ("0.17.0", False)])
def test_request_takes_the_end_of_sequence_until_0_16(release: str, takes: bool) -> None:
    with install(release):
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        keys = {
            "request_id": "r",
            "prompt_token_ids": [1, 2],
            "sampling_params": SamplingParams(max_tokens=1),
            "pooling_params": None,
        }
        wrong = keys if takes else {**keys, "eos_token_id": 2}
        with pytest.raises(TypeError) as refusal:
            Request(**wrong)
        right = {**keys, "eos_token_id": 2} if takes else keys
        assert Request(**right).prompt_token_ids == [1, 2]
    assert str(refusal.value) == (
        "Request.__init__() missing 1 required positional argument: 'eos_token_id'"
        if takes
        else "Request.__init__() got an unexpected keyword argument 'eos_token_id'"
    )


def test_sampling_parameters_refuse_as_a_struct_does(release_016: ModuleType) -> None:
    from vllm.sampling_params import SamplingParams

    with pytest.raises(TypeError, match=r"^Unexpected keyword argument 'foo'$"):
        SamplingParams(foo=1)
    assert SamplingParams(max_tokens=1).temperature == 1.0
    assert release_016.SamplingParams is SamplingParams


# Names


def test_unknown_names_are_refused_with_the_release(release_016: ModuleType) -> None:
    says = "recorded vLLM 0.16.0 has no such seam"
    with pytest.raises(ImportError, match=says):
        from vllm.config import NoSuchConfig  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match=says):
        import vllm.v1.no_such_module  # noqa: F401
    with pytest.raises(AttributeError, match=says):
        _ = release_016.no_such_name
    assert not hasattr(release_016, "no_such_name")
    assert importlib.util.find_spec("vllm.v1.no_such_module") is None
    assert importlib.util.find_spec("vllm.v1") is not None


def test_unknown_members_are_refused_in_pythons_words_with_a_note(
    release_016: ModuleType,
) -> None:
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.request import RequestStatus

    with pytest.raises(AttributeError) as refusal:
        _ = Scheduler.no_such_method
    assert str(refusal.value) == "type object 'Scheduler' has no attribute 'no_such_method'"
    assert refusal.value.__notes__ == ["the recorded vLLM 0.16.0 has no such seam"]
    with pytest.raises(AttributeError):
        _ = RequestStatus.NO_SUCH_STATUS
    assert RequestStatus.FINISHED_ABORTED.name == "FINISHED_ABORTED"


def test_names_that_moved_are_found_in_their_place_only() -> None:
    with install("0.11.0"):
        assert reach("vllm.utils:get_hash_fn_by_name")
        with pytest.raises(ImportError):
            reach("vllm.utils.hashing:get_hash_fn_by_name")
    with install("0.11.1"):
        assert reach("vllm.utils.hashing:get_hash_fn_by_name")
        with pytest.raises(AttributeError):
            reach("vllm.utils:get_hash_fn_by_name")


def test_the_module_that_lacks_a_recorded_name_is_there() -> None:
    with install("0.16.0"):
        assert reach("vllm.v1.attention.backends.utils")
        with pytest.raises(AttributeError):
            reach("vllm.v1.attention.backends.utils:resolve_kv_cache_layout")
        with pytest.raises(ImportError):
            reach("vllm.v1.spec_decode.extract_hidden_states")


def test_a_class_is_one_object_in_all_its_places(release_016: ModuleType) -> None:
    assert reach("vllm.config:SchedulerConfig") is reach("vllm.config.scheduler:SchedulerConfig")
    assert reach("vllm:LLM") is reach("vllm.entrypoints.llm:LLM")
    assert issubclass(
        reach("vllm.v1.worker.cpu_worker:CPUWorker"), reach("vllm.v1.worker.gpu_worker:Worker")
    )


def test_what_is_recorded_by_signature_only_binds_and_then_says_so(
    release_016: ModuleType,
) -> None:
    from vllm.model_executor.model_loader import register_model_loader

    with pytest.raises(TypeError):
        register_model_loader()
    with pytest.raises(NotFaked, match=r"0\.16\.0 has it"):
        register_model_loader("x")


def test_a_constructor_that_was_not_recorded_is_never_called(release_016: ModuleType) -> None:
    for path in (
        "vllm.v1.core.sched.output:NewRequestData",
        "vllm.v1.worker.gpu_worker:Worker",
        "vllm.model_executor.models.deepseek_v2:DeepseekV2DecoderLayer",
    ):
        with pytest.raises(NotFaked, match="constructor is not recorded"):
            reach(path)()


def test_defaults_are_the_recorded_ones_and_new_for_each_object(release_016: ModuleType) -> None:
    from vllm.config import CacheConfig, LoadConfig, ParallelConfig

    assert CacheConfig().gpu_memory_utilization == 0.9
    assert CacheConfig.enable_prefix_caching is True
    assert ParallelConfig().worker_extension_cls == ""
    first, second = LoadConfig(), LoadConfig()
    assert first.ignore_patterns == ["original/**/*"]
    assert first.ignore_patterns is not second.ignore_patterns
    with pytest.raises(ValidationError, match="num_gpu_blocks\n  Unexpected keyword argument"):
        CacheConfig(num_gpu_blocks=1)
