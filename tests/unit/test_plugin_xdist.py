"""Several processes: engine and GPU tests are refused there; all others run as always."""

from __future__ import annotations

import pytest

from tests.unit.plugins import Inner, inner

__all__ = ["inner"]
pytest_plugins = ["pytester"]
pytest.importorskip("xdist", reason="pytest-xdist is not installed; next: pip install -e .[dev]")

XDIST = ("-p", "xdist.plugin", "-n", "2")
SOURCE = """
    import os
    import pytest

    @pytest.mark.parametrize("number", range(4))
    def test_shared(engine, number):
        engine.hidden_states([[1, 2, number]])

    @pytest.mark.parametrize("number", range(4))
    def test_plain(number):
        pass
"""


@pytest.mark.parametrize("dist", ["load", pytest.param("loadgroup", marks=pytest.mark.slow)])
def test_engine_tests_in_several_processes_are_refused_before_any_test(
    inner: Inner, dist: str
) -> None:
    result = inner.run_apart(SOURCE, *XDIST, "--dist", dist)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(
        ["*FAILED: 4 tests need an engine or GPUs and cannot be spread over 2 processes; next: *"]
    )
    assert not result.parseoutcomes().get("passed")
    assert not inner.python.engines()


def test_tests_without_engine_run_in_parallel_as_always(inner: Inner) -> None:
    result = inner.run_apart(SOURCE, *XDIST, "-m", "not engine")
    result.assert_outcomes(passed=4)
    assert result.ret == pytest.ExitCode.OK


def test_one_worker_is_one_process(inner: Inner) -> None:
    result = inner.run_apart(SOURCE, "-p", "xdist.plugin", "-n", "1", "--hs-require-engine")
    result.assert_outcomes(passed=8)
    assert inner.python.loads == 1
    result.stdout.fnmatch_lines(["engine: 1 load in * s, canary passed"])
