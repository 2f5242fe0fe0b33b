"""``pytest --hs-attach``: sessions on a leased engine, a stand-in behind the real wire."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import state
from harness.lease import files
from harness.lease.condition import Condition
from tests.unit.leases import Box, box_in
from tests.unit.plugins import Inner, inner

__all__ = ["inner"]
pytest_plugins = ["pytester"]

USE = """
    def test_engine(engine):
        assert engine.proved
        assert engine.loads == 0
        assert (engine.lease.name, engine.lease.loads) == ("one", 1)
        sample, = engine.hidden_states([[1, 2, 3]])
        assert sample.tokens == 3

    def test_later(engine):
        assert engine.hidden_states([[4, 5]])[0].tokens == 2
"""


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory, tiny_kimi: Path) -> Iterator[Box]:
    with box_in(tmp_path_factory.mktemp("held"), tiny_kimi) as one:
        one.hold()
        yield one


@pytest.fixture
def box(held: Box, inner: Inner, monkeypatch: pytest.MonkeyPatch) -> Box:
    """The lease, seen by a session inside of this one; both have the same interpreter."""
    monkeypatch.setenv(state.VARIABLE, str(held.book.folder.parent))
    inner.python = held.python
    return held


def test_two_runs_of_pytest_one_load(inner: Inner, box: Box) -> None:
    for _ in range(2):
        result = inner.run(USE, "--hs-attach=one")
        result.assert_outcomes(passed=2)
        told = "attached to one (loaded * ago, load 1 of this lease) in * s, canary passed"
        result.stdout.fnmatch_lines(["harness attach: one, ready, loaded * ago", f"engine: {told}"])
        box.until(Condition.READY)
        assert not list((box.book.home("one") / "spool").iterdir())
    assert box.python.loads == 1


def test_changed_patch_is_refused_by_name(
    inner: Inner, box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = files.patch_digests()
    assert "patch `host-copy`" in ours
    monkeypatch.setattr(files, "patch_digests", lambda: {**ours, "patch `host-copy`": "another"})
    result = inner.run(USE, "--hs-attach=one")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(
        [
            "E *lease.differs",
            "E *found: *patch `host-copy` differs",
            "E *next: *harness engine stop one, then harness engine start --name one*",
            "*out of use since: lease.differs: patch `host-copy` differs",
            "engine failure: lease.differs: patch `host-copy` differs",
        ]
    )
    assert box.python.loads == 1


def test_engine_that_fails_the_canary_now_is_of_no_use_to_the_session(
    inner: Inner, box: Box
) -> None:
    box.python.behave(canary="wrong")
    result = inner.run(USE, "--hs-attach=one")
    box.python.behave()
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["engine: attached to one * in * s, canary failed"])


def test_what_is_not_set_is_the_leases_and_shown_as_such(inner: Inner, box: Box) -> None:
    inner.pytester.makepyfile(USE)
    result = inner.pytester.runpytest_inprocess(
        "-p", "harness.plugin", "--hs-attach", "-p", "no:cacheprovider"
    )
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        [f"harness settings, lease: model={box.model} layers=1,3,4 *python={box.python.python}"]
    )


def test_attach_may_be_set_for_good_and_taken_back(inner: Inner, box: Box) -> None:
    inner.pytester.makeini("[pytest]\nhs_attach = yes\n")
    inner.run("def test_it(engine): assert engine.lease").assert_outcomes(passed=1)
    inner.run("def test_it(): pass", "--hs-attach=no").stdout.no_fnmatch_line("harness attach*")


def test_without_a_lease_only_tests_of_the_engine_fail(inner: Inner, box: Box) -> None:
    result = inner.run("def test_a(): pass\ndef test_b(engine): pass", "--hs-attach=other")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        ["harness attach: no lease `other`; next: harness engine status", "E *lease.unknown"]
    )


def test_file_taken_for_a_name_is_explained(inner: Inner, box: Box) -> None:
    inner.pytester.mkdir("tests")
    result = inner.run("def test_a(): pass", "--hs-attach", "tests")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*took 'tests' for the name of a lease*--hs-attach=NAME*"])
    result = inner.run("def test_a(): pass", "--hs-attach", "tests/unit")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*settings.bad-value*"])


def test_session_that_fails_or_is_cut_leaves_the_lease_ready(inner: Inner, box: Box) -> None:
    result = inner.run(
        """
        import pytest

        def test_a(engine):
            assert False

        def test_b(engine):
            pytest.exit("enough")
        """,
        "--hs-attach",
    )
    assert result.ret == pytest.ExitCode.INTERRUPTED
    box.until(Condition.READY)
    inner.run(USE, "--hs-attach").assert_outcomes(passed=2)
    assert box.python.loads == 1


def test_engine_that_fails_under_a_session_names_the_lease(inner: Inner, box: Box) -> None:
    box.python.behave(plain="fail")
    result = inner.run(
        """
        import pytest
        from harness.errors import EngineFailed

        def test_it(engine):
            with pytest.raises(EngineFailed, match="engine.double-failed"):
                engine.plain([[1, 2]])
            with pytest.raises(EngineFailed, match="engine.out-of-use") as caught:
                engine.plain([[1, 2]])
            assert "harness engine status" in caught.value.failure.next
        """,
        "--hs-attach",
    )
    box.python.behave()
    result.assert_outcomes(passed=1)
    # It was an error that the engine foresaw: the next session may use it.
    inner.run(USE, "--hs-attach").assert_outcomes(passed=2)
