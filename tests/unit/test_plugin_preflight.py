"""`clean_gpus` and `gpu_census`, and that no engine is loaded onto GPUs that are not clean."""

from __future__ import annotations

import json

import pytest

from fixtures import fake_nvml
from tests.unit.interpreters import StandIn
from tests.unit.plugins import Inner, inner

__all__ = ["inner"]
pytest_plugins = ["pytester"]

USE = """
    def test_first(engine):
        engine.hidden_states([[1, 2, 3]])

    def test_second(engine):
        engine.hidden_states([[1, 2, 3]])
"""


@pytest.fixture
def cuda(inner: Inner) -> StandIn:
    """An interpreter whose vLLM uses GPUs."""
    stand_in = StandIn(inner.pytester.path / "cuda", device="cuda")
    path = stand_in.folder / "facts.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "gpus": 8}))
    return stand_in


def test_engine_is_not_loaded_onto_a_dirty_gpu(inner: Inner, cuda: StandIn) -> None:
    inner.box(fake_nvml.load("story-dirty"))
    result = inner.run(USE, "--hs-tensor-parallel-size=4", python=cuda)
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(
        ["*preflight.dirty*", "*GPU 2: 75,728 MiB used: no visible owner*", "*fuser -v*nvidia2*"]
    )
    assert cuda.engines() == []


def test_engine_is_loaded_onto_clean_gpus_beside_a_dirty_one(inner: Inner, cuda: StandIn) -> None:
    inner.box(fake_nvml.load("story-dirty"))
    result = inner.run(USE, "--hs-tensor-parallel-size=2", python=cuda)
    result.assert_outcomes(passed=2)
    assert cuda.loads == 1


def test_a_driver_that_does_not_answer_refuses_too(inner: Inner, cuda: StandIn) -> None:
    inner.box(fake_nvml.load("r56-no-memory-info"))
    result = inner.run(USE, python=cuda)
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*preflight.unknown*"])
    assert cuda.engines() == []


def test_checks_that_the_user_leaves_out_stop_nothing(inner: Inner, cuda: StandIn) -> None:
    inner.box(fake_nvml.load("story-dirty"))
    arguments = ("--hs-tensor-parallel-size=4", "--hs-preflight-skip=memory.need, memory.used")
    inner.run(USE, *arguments, python=cuda).assert_outcomes(passed=2)


def test_an_unknown_check_is_named(inner: Inner, cuda: StandIn) -> None:
    inner.box(fake_nvml.load("story-clean"))
    result = inner.run(USE, "--hs-preflight-skip=memory.usde", python=cuda)
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*preflight.unknown-check*", "*memory.usde*"])


def test_an_engine_on_a_cpu_never_looks(inner: Inner, monkeypatch: pytest.MonkeyPatch) -> None:
    inner.box(fake_nvml.load("story-dirty"))
    monkeypatch.setattr("harness.plugin._preflight.examine", None)
    inner.run(USE).assert_outcomes(passed=2)


def test_fixtures_give_the_report_and_the_census_once(inner: Inner) -> None:
    inner.box(fake_nvml.load("story-clean"))
    result = inner.run("""
        def test_report(clean_gpus):
            assert clean_gpus.verdict == "CLEAN"
            assert [row.used for row in clean_gpus.rows][3] == 3 << 20
            assert sum(row.used_by_engine for row in clean_gpus.rows) == 1

        def test_same(clean_gpus, gpu_census):
            assert gpu_census.count == len(gpu_census.devices) == 8
    """)
    result.assert_outcomes(passed=2)


def test_clean_gpus_is_skipped_without_gpus_and_fails_where_they_are_required(
    inner: Inner,
) -> None:
    source = "def test_it(clean_gpus): pass"
    inner.run(source).assert_outcomes(skipped=1)
    result = inner.run(source, "--hs-require-gpu")
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*no usable GPU*Driver Not Loaded*"])


def test_a_broken_driver_fails_gpu_tests_instead_of_skipping_them(inner: Inner) -> None:
    inner.box(fake_nvml.load("r58-driver-mismatch"))
    result = inner.run("""
        import pytest

        def test_facts(gpu_census):
            assert gpu_census.failure.code == 18

        @pytest.mark.gpu
        def test_on_a_gpu(): pass

        def test_clean(clean_gpus): pass
    """)
    result.assert_outcomes(passed=1, errors=2)
