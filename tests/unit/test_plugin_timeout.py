"""pytest-timeout beside the engine: a load is nobody's test, a hanging call is its own test's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.plugins import Inner, inner

__all__ = ["inner"]
pytest_plugins = ["pytester"]
pytest.importorskip("pytest_timeout", reason="pytest-timeout is not installed; it is in [test]")

TIMEOUT = ("-p", "pytest_timeout", "--timeout=1")


def test_load_is_not_billed_to_the_first_test(inner: Inner) -> None:
    inner.python.behave(load="slow")
    result = inner.run(
        """
        import pytest

        def test_first(engine):
            engine.hidden_states([[1, 2]])

        @pytest.mark.timeout(0.5)
        def test_with_a_limit_of_its_own(engine):
            engine.hidden_states([[1, 2]])
        """,
        *TIMEOUT,
    )
    result.assert_outcomes(passed=2)


def test_limit_of_the_test_itself_stays_in_force(inner: Inner) -> None:
    source = """
        import time, pytest

        def test_sleepy(engine):
            time.sleep(5)

        @pytest.mark.timeout(0.5)
        def test_sleepy_by_itself(engine):
            time.sleep(5)
    """
    result = inner.run(source, *TIMEOUT)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*Timeout (>1.0s)*", "*Timeout (>0.5s)*"])
    # Outside of a call of the engine, which is still good then.
    result.stdout.no_fnmatch_line("*out of use*")


def test_call_cut_off_by_a_limit_puts_the_engine_out_of_use(inner: Inner) -> None:
    inner.python.behave(extract="hang")
    result = inner.run(
        """
        def test_hanging(engine):
            engine.hidden_states([[1, 2]])

        def test_later(engine):
            engine.hidden_states([[1, 2]])
        """,
        *TIMEOUT,
        "--junitxml=junit.xml",
    )
    result.assert_outcomes(failed=1, errors=1)
    result.stdout.fnmatch_lines(["*out of use since: Failed: Timeout (>1.0s)*"])
    assert result.duration < 30
    assert not inner.python.running()
    # What is left to find out why: both tests in the JUnit file, the stacks in the log.
    junit = (inner.pytester.path / "junit.xml").read_text()
    assert 'name="test_hanging"' in junit
    assert "out of use since: Failed: Timeout" in junit
    (line,) = [line for line in result.outlines if line.startswith("engine log: ")]
    log = Path(line.removeprefix("engine log: ")).read_text()
    assert "most recent call first" in log
    assert "arithmetic.py" in log


def test_limit_that_ends_pytest_itself_ends_the_engine_too(inner: Inner) -> None:
    inner.python.behave(extract="hang")
    source = """
        def test_hanging(engine):
            engine.hidden_states([[1, 2]])
    """
    result = inner.run_apart(source, *TIMEOUT, "--timeout-method=thread")
    assert result.ret == 1
    assert "passed" not in result.stdout.str()
    assert len(inner.python.engines()) == 1
    assert not inner.python.running(seconds=15)


def test_limit_that_asks_for_the_fixtures_too_gets_them(inner: Inner) -> None:
    inner.python.behave(load="slow")
    result = inner.run(
        """
        import pytest

        @pytest.mark.timeout(1, func_only=False)
        def test_first(engine):
            pass
        """,
        *TIMEOUT,
    )
    result.assert_outcomes(errors=1)


def test_other_tests_keep_their_limits(inner: Inner) -> None:
    result = inner.run(
        """
        import time, pytest

        @pytest.fixture
        def slow():
            time.sleep(5)

        def test_slow(slow):
            pass
        """,
        *TIMEOUT,
    )
    result.assert_outcomes(errors=1)
