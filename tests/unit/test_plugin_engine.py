"""The engine of a session: one load, proved, out of use after a failure, ended at the end.

The engine here is arithmetic behind the real wire (``fixtures/engine/interpreter.py``); all of
the parent's side is real.
"""

from __future__ import annotations

import pytest

from tests.unit.plugins import Inner, inner

__all__ = ["inner"]
pytest_plugins = ["pytester"]

USE = """
    def test_first(engine):
        engine.hidden_states([[1, 2, 3]])

    def test_second(engine):
        engine.hidden_states([[4, 5]])
"""


def assert_ended(inner: Inner, engines: int = 1) -> None:
    """So many engines were started, and none runs."""
    assert len(inner.python.engines()) == engines
    assert not inner.python.running()


def test_engine_is_loaded_once_for_all_tests_and_files(inner: Inner) -> None:
    inner.pytester.makepyfile(test_other="def test_other(engine, extraction): pass")
    result = inner.run("""
        import pytest

        @pytest.mark.parametrize("number", range(3))
        def test_many(engine, number):
            assert engine.loads == 1

        class TestClass:
            def test_inside(self, engine):
                assert engine.proved
    """)
    result.assert_outcomes(passed=5)
    assert inner.python.loads == 1
    result.stdout.fnmatch_lines(["engine: 1 load in * s, canary passed"])
    assert_ended(inner)


def test_sample_holds_its_prompts_rows_in_the_order_asked(inner: Inner) -> None:
    # The double answers a batch backwards.
    result = inner.run("""
        import numpy as np

        def test_samples(engine):
            prompts = [[7, 8, 9], [1], [7, 8, 9], list(range(40))]
            samples = engine.hidden_states(prompts)
            assert [sample.token_ids.tolist() for sample in samples] == prompts
            assert engine.depths == (1, 3, 4, 6)
            for ids, sample in zip(prompts, samples):
                hidden = engine.plan.model.hidden_size
                assert sample.hidden_states.shape == (len(ids), 4, hidden)
                assert sample.hidden_states.dtype == np.float32
                assert sample.dtype == "float32"
                assert sample.depths == engine.depths
                assert sample.tokens == len(ids)
                assert sample.logprobs is None
                assert np.array_equal(sample.at(3), sample.hidden_states[:, 1])
            first, _, same, _ = samples
            assert np.array_equal(first.hidden_states, same.hidden_states)
            alone, = engine.hidden_states([[7, 8, 9]])
            assert np.array_equal(first.hidden_states, alone.hidden_states)

        def test_spool_keeps_nothing(engine):
            engine.hidden_states([[1, 2]])
            assert not list(engine.plan.session.spool.glob("*.safetensors"))

        def test_arrays_are_prompts_too(engine):
            sample, = engine.hidden_states([np.array([3, 1, 2])])
            assert sample.token_ids.tolist() == [3, 1, 2]

        def test_check_comes_with_the_sample(engine):
            sample, = engine.hidden_states([[1, 2, 3]], check=True)
            assert sample.logprobs.max_err == sample.logprobs.mean_err == 0.0

        def test_facts(engine):
            assert engine.loaded.versions == {"vllm": "0.32.0"}
            assert str(engine.facts.engine.vllm) == "0.32.0"
            assert engine.plan.options.layers == "1,3,4"
            assert engine.log.exists()

        def test_plain_speed(engine):
            assert engine.plain([[1, 2], [3]], repeats=2) == [6.0, 6.0]
    """)
    result.assert_outcomes(passed=6)


def test_long_lists_of_prompts_go_in_batches(inner: Inner) -> None:
    result = inner.run("""
        def test_batches(engine):
            prompts = [[n % 200, n // 200, 7] for n in range(600)]
            samples = engine.hidden_states(prompts)
            assert [sample.token_ids.tolist() for sample in samples] == prompts
    """)
    result.assert_outcomes(passed=1)


def test_bad_prompt_is_refused_and_the_engine_stays_in_use(inner: Inner) -> None:
    result = inner.run("""
        import pytest
        from harness.errors import UsageError

        @pytest.mark.parametrize(("prompts", "id"), [
            ([], "prompts.empty-file"),
            ([[]], "prompts.empty-prompt"),
            ([[1], [512]], "prompts.id-out-of-vocabulary"),
            ([[-1]], "prompts.negative-id"),
            ([["one"]], "prompts.bad-ids"),
            ([[1] * 1024], "prompts.too-long"),
            ([[1, "placeholder"]], "prompts.forbidden-id"),
        ])
        def test_bad(engine, prompts, id):
            placeholder = engine.plan.model.media_placeholder_id
            sent = [[placeholder if t == "placeholder" else t for t in ids] for ids in prompts]
            with pytest.raises(UsageError, match=id):
                engine.hidden_states(sent)

        def test_good(engine):
            engine.hidden_states([[1] * 1023])
    """)
    result.assert_outcomes(passed=8)


def test_failed_load_fails_every_later_test_at_once_with_the_first_reason(inner: Inner) -> None:
    inner.python.behave(load="fail")
    result = inner.run(USE)
    result.assert_outcomes(errors=2)
    assert inner.python.loads == 1
    result.stdout.fnmatch_lines(
        [
            "*ERROR at setup of test_second*",
            "the session's engine is out of use since: engine.double-failed: *told to fail at load",
            "engine: 1 load in *",
            "engine failure: engine.double-failed: *",
            "engine log: *engine.log",
        ]
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert_ended(inner)


def test_hanging_load_is_cut_at_its_deadline(inner: Inner) -> None:
    inner.python.behave(load="hang")
    result = inner.run(USE, "--hs-load-deadline=1")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*out of use since: host.deadline: still running after * s*"])
    assert result.duration < 30
    assert_ended(inner)


def test_engine_that_fails_the_canary_is_never_used(inner: Inner) -> None:
    inner.python.behave(canary="wrong")
    result = inner.run(USE)
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(
        ["*out of use since: canary.failed: *", "engine: 1 load in * s, canary failed"]
    )
    assert_ended(inner)


def test_died_engine_fails_later_tests_at_once_with_the_first_reason(inner: Inner) -> None:
    inner.python.behave(plain="die")
    result = inner.run("""
        def test_good(engine):
            engine.hidden_states([[1, 2, 3]])

        def test_deadly(engine):
            engine.plain([[1, 2]])

        def test_later(engine):
            engine.hidden_states([[1, 2, 3]])

        def test_without():
            pass
    """)
    result.assert_outcomes(passed=2, failed=1, errors=1)
    result.stdout.fnmatch_lines(["*out of use since: host.engine-died: killed by SIGABRT"])
    assert inner.python.loads == 1
    assert_ended(inner)


def test_engine_out_of_use_says_so_within_one_test_too(inner: Inner) -> None:
    inner.python.behave(plain="fail")
    result = inner.run("""
        import pytest
        from harness.errors import EngineFailed

        def test_stubborn(engine):
            with pytest.raises(EngineFailed, match="engine.double-failed"):
                engine.plain([[1, 2]])
            with pytest.raises(EngineFailed, match="engine.out-of-use") as caught:
                engine.hidden_states([[1, 2]])
            assert "double-failed" in caught.value.failure.found
    """)
    result.assert_outcomes(passed=1)


def test_rows_that_are_not_the_prompts_own_are_refused(inner: Inner) -> None:
    inner.python.behave(extract="wrong")
    result = inner.run("""
        import pytest
        from harness.errors import CheckFailed

        def test_refused(engine):
            with pytest.raises(CheckFailed, match="engine.sample-refused") as caught:
                engine.hidden_states([[1, 2, 3], [4, 5]])
            found = [(f.id, f.check) for f in caught.value.details["findings"]]
            assert found == [("prompt 0", "rows"), ("prompt 1", "rows")]
            assert not list(engine.plan.session.spool.glob("*.safetensors"))
    """)
    result.assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("body", "args", "code"),
    [
        ("pass", (), pytest.ExitCode.OK),
        ("assert False", (), pytest.ExitCode.TESTS_FAILED),
        ("assert False", ("-x",), pytest.ExitCode.TESTS_FAILED),
        ("pytest.exit('enough')", (), pytest.ExitCode.INTERRUPTED),
        ("raise KeyboardInterrupt", (), pytest.ExitCode.INTERRUPTED),
        ("os.kill(os.getpid(), signal.SIGINT)", (), pytest.ExitCode.INTERRUPTED),
    ],
)
def test_engine_is_ended_however_the_session_ends(
    inner: Inner, body: str, args: tuple[str, ...], code: pytest.ExitCode
) -> None:
    result = inner.run_apart(
        f"""
        import os, signal, pytest

        def test_ends(engine):
            {body}

        def test_after(engine):
            pass
        """,
        *args,
    )
    assert result.ret == code
    assert_ended(inner)
    result.stdout.fnmatch_lines(["engine: 1 load in *"])


def test_interrupt_during_the_load_ends_the_engine(inner: Inner) -> None:
    inner.python.behave(load="hang")
    result = inner.run_apart(f"""
        import os, signal, threading, time
        from pathlib import Path

        def interrupt():
            while not Path("{inner.python.folder}/loads").exists():
                time.sleep(0.02)
            os.kill(os.getpid(), signal.SIGINT)

        def test_interrupted(request):
            threading.Thread(target=interrupt, daemon=True).start()
            request.getfixturevalue("engine")
    """)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert_ended(inner)


def test_engine_that_something_outlives_fails_the_session(inner: Inner) -> None:
    inner.pytester.makeconftest("""
        import pytest
        from harness.capture.session import EngineSession
        from harness.errors import EngineFailed

        close = EngineSession.close

        def left(self):
            close(self)
            raise EngineFailed("host.survivors", expected="none", found="VLLM::Worker (pid 7)",
                               where="", next="")

        EngineSession.close = left
    """)
    result = inner.run_apart(USE)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*FAILED: VLLM::Worker (pid 7) outlived the engine"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_session_without_engine_tests_starts_nothing_and_adds_no_section(inner: Inner) -> None:
    result = inner.run("def test_plain(): pass")
    result.assert_outcomes(passed=1)
    assert not inner.python.engines()
    result.stdout.no_fnmatch_line("*hidden-state harness*")


def test_bad_settings_of_the_engine_are_an_error_that_names_them(inner: Inner) -> None:
    for option, id in (
        ("--hs-layers=1,99", "layers.out-of-range"),
        ("--hs-dialect=klingon", "layers.unknown-dialect"),
        ("--hs-capture=telepathy", "extract.unknown-capture"),
        ("--hs-dtype=float16", "float16"),
    ):
        result = inner.run("def test_engine(engine): pass", option)
        result.assert_outcomes(errors=1)
        result.stdout.fnmatch_lines([f"*{id}*"])
    assert not inner.python.engines()
