"""The `baseline` fixture: key, judge, what a session records, and what it says at its end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from harness.baseline import Key, model_name, read_folders, series, write
from tests.unit.baselines import baseline
from tests.unit.plugins import Inner, inner

__all__ = ["inner"]
pytest_plugins = ["pytester"]

CARD = "NVIDIA H200"
WORKLOAD = "4 x 8 tokens"
GOOD = [100.0, 101.0, 99.0, 100.0, 100.0]


def key(inner: Inner, **changes: Any) -> Key:
    """The key of the stand-in's engine, as a session on one H200 must find it."""
    own = Key(
        gpu=CARD,
        gpus=1,
        tensor_parallel_size=1,
        vllm="0.32.0",
        torch="2.13.0",
        speculators="0.9.0",
        model=model_name(inner.model),
        capture="native",
        dtype="float32",
        token_budget=2048,
        workload=WORKLOAD,
    )
    return replace(own, **changes)


def judging(runs: list[float], *, again: list[float] | None = None, wanted: str = "") -> str:
    """A test that judges runs, and demands a status where one is wanted."""
    rerun = f"lambda: {again}" if again else "None"
    check = f"assert found.status == {wanted!r}, found" if wanted else ""
    return f"""
        def test_speed(baseline, hs_settings, tmp_path):
            from harness.plugin.engine import engine_plan
            plan = engine_plan(hs_settings, hs_settings.model, tmp_path)
            own = baseline.of(plan, {WORKLOAD!r})
            found = own.judge("files_tok_per_s", {runs}, rerun={rerun})
            {check}
    """


@pytest.fixture
def recorded(inner: Inner, tmp_path: Path) -> Path:
    """A folder with a baseline of the stand-in's engine."""
    inner.gpus([CARD])
    write(tmp_path / "recorded", baseline(key=key(inner), files_tok_per_s=GOOD))
    return tmp_path / "recorded"


def test_session_as_fast_as_recorded_is_green_and_says_so(inner: Inner, recorded: Path) -> None:
    result = inner.run(judging(GOOD, wanted="ok"), f"--hs-baselines={recorded}")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["*hidden-state harness: baselines*", f"1 x {CARD}, tp 1, vllm 0.32.0*", "  files_tok_per*"]
    )
    result.stdout.fnmatch_lines(["  files_tok_per_s: ok: expected at least 95 (recorded 100)*"])


def test_slower_twice_is_red_in_summary_and_in_junit(
    inner: Inner, recorded: Path, tmp_path: Path
) -> None:
    report = tmp_path / "junit.xml"
    source = judging([80.0] * 5, again=[81.0] * 5, wanted="red")
    result = inner.run(source, f"--hs-baselines={recorded}", f"--junitxml={report}")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["  files_tok_per_s: red: *(the rerun too: 81)"])
    (told,) = ElementTree.parse(report).iter("property")
    assert told.get("name") == "baseline.native.files_tok_per_s"
    value = json.loads(told.get("value", ""))
    assert (value["status"], value["rerun"]) == ("red", [81.0] * 5)


def test_another_card_is_not_comparable_with_its_reason(inner: Inner, recorded: Path) -> None:
    inner.gpus(["NVIDIA A100"])
    result = inner.run(judging(GOOD, wanted="not comparable"), f"--hs-baselines={recorded}")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["  the nearest baseline differs in gpu: NVIDIA A100 here, NVIDIA H200 recorded"]
    )


def test_without_a_gpu_nothing_is_compared(inner: Inner) -> None:
    result = inner.run(judging(GOOD, wanted="not comparable"))
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["  not known here: gpu"])


def test_what_was_measured_is_recorded_and_then_the_next_sessions_floor(
    inner: Inner, tmp_path: Path
) -> None:
    inner.gpus([CARD])
    out = f"--hs-record-baseline={tmp_path / 'new'}"
    result = inner.run(judging(GOOD), out)
    assert result.ret == 0
    (stored,) = read_folders([tmp_path / "new"])
    assert stored.baseline.key == key(inner)
    assert stored.baseline.figures == {"files_tok_per_s": series("files_tok_per_s", GOOD)}
    # Given again it is the floor; what is there already is not overwritten.
    again = inner.run(judging([99.0] * 5, wanted="ok"), out)
    again.stdout.fnmatch_lines(["FAILED: baseline not recorded: baseline.exists*"])
    assert again.ret == pytest.ExitCode.TESTS_FAILED
    assert read_folders([tmp_path / "new"]) == (stored,)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (judging([100.0, 110.0, 100.0, 100.0, 90.0]), "FAILED: *baseline.spread: 20.0%; *110, *"),
        (judging(GOOD[:4]), "FAILED: baseline not recorded: baseline.too-few-runs: 4 of 5*"),
        (judging(GOOD, wanted="red"), "not recorded to *: the session did not pass"),
    ],
)
def test_what_is_no_baseline_fails_the_session_and_leaves_no_file(
    inner: Inner, tmp_path: Path, source: str, line: str
) -> None:
    inner.gpus([CARD])
    result = inner.run(source, f"--hs-record-baseline={tmp_path / 'new'}")
    result.stdout.fnmatch_lines([line])
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert not (tmp_path / "new").exists()


def test_session_of_others_records_nothing_and_passes(inner: Inner, tmp_path: Path) -> None:
    result = inner.run("def test_plain(): pass", f"--hs-record-baseline={tmp_path / 'new'}")
    assert result.ret == 0
    assert "baselines" not in result.stdout.str().split("test session starts")[1].split("\n\n")[-1]
    assert not (tmp_path / "new").exists()


def test_sessions_engine_has_a_key_and_backends(inner: Inner, tmp_path: Path) -> None:
    inner.gpus([CARD])
    own = baseline(key=key(inner, workload="any"), seen={"attention": "Nobody's"})
    write(tmp_path / "recorded", own)
    result = inner.run(
        """
        def test_backends(engine, baseline):
            assert baseline.key.workload == "any"
            assert baseline.entry is not None
            (found,) = baseline.backends(engine.loaded)
            assert (found.name, found.status) == ("attention", "red")
            assert found.found == engine.loaded.workers[0].get("attention", "not told")

        def test_planned_as_loaded(engine, baseline):
            assert baseline.of(engine.plan, "any").key == baseline.key
        """,
        f"--hs-baselines={tmp_path / 'recorded'}",
    )
    result.assert_outcomes(passed=2)
