"""What the plugin does with a test whose needs are not met: it says so, or it fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.interpreters import StandIn
from tests.unit.plugins import Inner, inner

__all__ = ["inner"]
pytest_plugins = ["pytester"]

H200 = "NVIDIA H200"
GPU_TEST = """
    import pytest

    @pytest.mark.gpu
    def test_on_gpu():
        pass
"""
ENGINE_TEST = """
    import pytest

    @pytest.mark.engine
    def test_of_engine():
        pass
"""
PLAIN_TEST = "def test_plain(): pass"


def test_gpu_test_without_a_gpu_is_skipped_with_the_reason(inner: Inner) -> None:
    result = inner.run(GPU_TEST)
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*no usable GPU: NVML does not start: Driver Not Loaded*"])
    assert result.ret == pytest.ExitCode.OK


def test_gpu_test_with_a_gpu_runs(inner: Inner) -> None:
    inner.gpus([H200])
    inner.run(GPU_TEST, "--hs-require-gpu").assert_outcomes(passed=1)


def test_required_gpu_that_is_missing_fails_test_and_session(inner: Inner) -> None:
    result = inner.run(GPU_TEST, "--hs-require-gpu")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*FAILED: --hs-require-gpu: no usable GPU: *Driver Not Loaded"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize("args", [(), ("-m", "gpu"), ("-k", "nothing")])
def test_required_gpu_that_is_missing_fails_the_session_that_ran_no_gpu_test(
    inner: Inner, args: tuple[str, ...]
) -> None:
    result = inner.run(PLAIN_TEST, "--hs-require-gpu", *args)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*FAILED: --hs-require-gpu: no usable GPU*"])


def test_required_gpu_fails_the_session_whose_gpu_tests_were_all_skipped(inner: Inner) -> None:
    inner.gpus([H200])
    source = """
        import pytest

        @pytest.mark.gpu
        def test_on_gpu():
            pytest.skip("not today")

        def test_plain():
            pass
    """
    result = inner.run(source, "--hs-require-gpu")
    result.assert_outcomes(passed=1, skipped=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*FAILED: --hs-require-gpu: no gpu test ran"])


def test_a_test_function_named_gpu_is_no_gpu_test(inner: Inner) -> None:
    # The keywords of a test hold the names of its folders and functions, too.
    inner.gpus([H200])
    source = """
        import pytest

        class gpu:
            pass

        @pytest.mark.parametrize("x", [1], ids=["gpu"])
        def test_plain(x):
            pass

        class TestGpu:
            gpu = True

            def test_gpu(self):
                pass
    """
    folder = inner.pytester.mkdir("gpu")
    (folder / "test_inner.py").write_text("def test_plain(): pass")
    result = inner.run(source, "--hs-require-gpu")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*FAILED: --hs-require-gpu: no gpu test ran"])


def test_collecting_only_demands_nothing(inner: Inner) -> None:
    result = inner.run(GPU_TEST, "--hs-require-gpu", "--hs-require-engine", "--collect-only")
    assert result.ret == pytest.ExitCode.OK


def test_multi_gpu_test_needs_as_many_as_it_says(inner: Inner) -> None:
    source = """
        import pytest

        @pytest.mark.multi_gpu(2)
        def test_on_two():
            pass

        @pytest.mark.multi_gpu(n=4)
        def test_on_four():
            pass
    """
    inner.gpus([H200, H200])
    result = inner.run(source)
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines([f"*needs 4 GPUs, usable: 2 x {H200} (NVML counts 2)*"])
    inner.run(source, "--hs-require-gpu").assert_outcomes(passed=1, errors=1)


def test_multi_gpu_test_is_chosen_as_a_gpu_test(inner: Inner) -> None:
    source = """
        import pytest

        @pytest.mark.multi_gpu(2)
        def test_on_two():
            pass
    """
    inner.gpus([H200, H200])
    inner.run(source, "-m", "gpu").assert_outcomes(passed=1)
    inner.run(source, "-m", "not gpu").assert_outcomes(deselected=1)


@pytest.mark.parametrize("given", ["", "'2'", "0", "True", "2, 3", "count=2"])
def test_multi_gpu_without_a_whole_number_is_refused(inner: Inner, given: str) -> None:
    result = inner.run(f"""
        import pytest

        @pytest.mark.multi_gpu({given})
        def test_on_some():
            pass
    """)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_on_some: expected multi_gpu(n) with a whole number*"])


def test_visible_devices_hide_gpus(inner: Inner, monkeypatch: pytest.MonkeyPatch) -> None:
    inner.gpus([H200, H200])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    result = inner.run(GPU_TEST)
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*no usable GPU: NVML counts 2, CUDA_VISIBLE_DEVICES=*"])


def test_engine_test_on_gpu_needs_a_vllm_that_was_built_for_it(inner: Inner) -> None:
    source = """
        import pytest

        @pytest.mark.gpu
        @pytest.mark.engine
        def test_of_engine_on_gpu():
            pass
    """
    inner.gpus([H200])
    result = inner.run(source)
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*is a CPU build*next: --hs-python*"])
    cuda = StandIn(inner.pytester.path / "cuda", device="cuda")
    inner.run(source, python=cuda).assert_outcomes(passed=1)


def test_engine_test_without_vllm_is_skipped_with_the_next_command(inner: Inner) -> None:
    bare = StandIn(inner.pytester.path / "bare", vllm=None)
    result = inner.run(ENGINE_TEST, python=bare)
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines([f"*no vLLM in {bare.python}*next: pytest --hs-python*"])
    assert result.ret == pytest.ExitCode.OK


def test_required_engine_that_is_missing_fails_test_and_session(inner: Inner) -> None:
    bare = StandIn(inner.pytester.path / "bare", vllm=None)
    result = inner.run(ENGINE_TEST, "--hs-require-engine", python=bare)
    result.assert_outcomes(errors=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result = inner.run(PLAIN_TEST, "--hs-require-engine", python=bare)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*FAILED: --hs-require-engine: no vLLM in *"])


def test_required_engine_that_ran_is_fine(inner: Inner) -> None:
    assert inner.run(ENGINE_TEST, "--hs-require-engine").ret == pytest.ExitCode.OK


def test_interpreter_that_gives_no_answer_is_no_engine(inner: Inner) -> None:
    mute = StandIn(inner.pytester.path / "mute")
    mute.python.write_text("#!/bin/sh\nexit 3\n")
    result = inner.run(ENGINE_TEST, python=mute)
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines([f"*exit code 3*{mute.python}*next: name one with --hs-python*"])


def test_tests_of_the_engine_fixtures_are_engine_tests(inner: Inner) -> None:
    bare = StandIn(inner.pytester.path / "bare", vllm=None)
    source = """
        def test_by_fixture(engine):
            pass

        def test_through_another(extraction):
            pass
    """
    inner.run(source, python=bare).assert_outcomes(skipped=2)
    inner.run(source, "-m", "not engine").assert_outcomes(deselected=2)


def test_engine_fixture_asked_for_at_run_time_is_skipped_too(inner: Inner) -> None:
    bare = StandIn(inner.pytester.path / "bare", vllm=None)
    source = """
        def test_late(request):
            request.getfixturevalue("engine")
    """
    inner.run(source, python=bare).assert_outcomes(skipped=1)


def test_fixture_of_the_same_name_in_another_project_is_left_alone(inner: Inner) -> None:
    bare = StandIn(inner.pytester.path / "bare", vllm=None)
    source = """
        import pytest

        @pytest.fixture
        def engine():
            return "a database"

        def test_database(engine):
            assert engine == "a database"
    """
    inner.run(source, "-m", "not engine", python=bare).assert_outcomes(passed=1)


def test_kimi_test_is_skipped_for_another_architecture(
    inner: Inner, tiny_kimi_factory: Callable[..., Path]
) -> None:
    source = """
        import pytest

        @pytest.mark.kimi
        def test_of_kimi():
            pass
    """
    inner.run(source).assert_outcomes(passed=1)
    plain = tiny_kimi_factory(architecture="plain")
    result = inner.run(source, f"--hs-model={plain}")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*needs Kimi-K2.5's architecture, --hs-model has Deepseek*"])
