"""The `baseline` fixture: key, judge, what a session records, and what it says at its end."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from packaging.version import Version

from harness.baseline import Key, Stored, model_name, read_folders, series, write
from harness.capture.protocol import Loaded
from harness.plugin._baselines import BaselineKeeper
from harness.plugin._gpus import GpuCount
from harness.plugin.baseline import EngineBaseline, key_of
from harness.reclaim.memory import DeviceUse
from harness.settings import Settings
from tests.unit.baselines import KEY, baseline
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


def judging(name: str, runs: list[float], again: list[float] | None = None) -> str:
    """The body of a test that judges runs; its finding is `found`."""
    rerun = f"lambda: {again}" if again else "None"
    return f"""
            from harness.plugin._asked import engine_plan
            plan = engine_plan(hs_settings, hs_settings.model, tmp_path)
            own = baseline.of(plan, {WORKLOAD!r})
            found = own.judge({name!r}, {runs}, rerun={rerun})
    """


def test_summary_and_junit_hold_every_finding_of_a_session(inner: Inner, tmp_path: Path) -> None:
    inner.gpus([CARD])
    recorded = baseline(key=key(inner), files_tok_per_s=GOOD, ratio=[1.0] * 5)
    write(tmp_path / "recorded", recorded)
    report = tmp_path / "junit.xml"
    source = f"""
        def test_as_fast(baseline, hs_settings, tmp_path):
            {judging("files_tok_per_s", GOOD)}
            assert found.status == "ok", found

        def test_slower_twice(baseline, hs_settings, tmp_path):
            {judging("ratio", [0.8] * 5, [0.81] * 5)}
            assert found.status == "red", found
    """
    folder = f"--hs-baselines={tmp_path / 'recorded'}"
    result = inner.run(source, folder, f"--junitxml={report}")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        [
            "*hidden-state harness: baselines*",
            f"1 x {CARD}, tp 1, vllm 0.32.0*",
            "  files_tok_per_s: ok: expected at least 95 (recorded 100), found 100",
            "  ratio: red: expected at least 0.980*(the rerun too: 0.810)",
        ]
    )
    told = {each.get("name"): each.get("value", "") for each in _properties(report)}
    assert json.loads(told["baseline.native.files_tok_per_s"])["status"] == "ok"
    assert json.loads(told["baseline.native.ratio"])["rerun"] == [0.81] * 5


def _properties(report: Path) -> list[ElementTree.Element]:
    return list(ElementTree.parse(report).iter("property"))


def test_what_was_measured_is_recorded_and_then_the_next_sessions_floor(
    inner: Inner, tmp_path: Path
) -> None:
    inner.gpus([CARD])
    out = f"--hs-record-baseline={tmp_path / 'new'}"
    source = f"""
        def test_speed(baseline, hs_settings, tmp_path):
            {judging("files_tok_per_s", GOOD)}
            assert found.status == ("ok" if own.entry else "not comparable")
            print("compared" if own.entry else "not compared")
    """
    first = inner.run(source, out, "-s")
    assert first.ret == 0
    assert "not compared" in first.stdout.str()
    (stored,) = read_folders([tmp_path / "new"])
    assert stored.baseline.key == key(inner)
    assert stored.baseline.figures == {"files_tok_per_s": series("files_tok_per_s", GOOD)}
    # Given again it is the floor; what is there already is not overwritten.
    again = inner.run(source, out, "-s")
    again.assert_outcomes(passed=1)
    assert "not compared" not in again.stdout.str()
    again.stdout.fnmatch_lines(["FAILED: baseline not recorded: baseline.exists*"])
    assert again.ret == pytest.ExitCode.TESTS_FAILED
    assert read_folders([tmp_path / "new"]) == (stored,)


def test_sessions_engine_has_a_key_and_backends(inner: Inner, tmp_path: Path) -> None:
    inner.gpus([CARD])
    own = baseline(key=key(inner, workload="any"), seen={"attention": "Nobody's"})
    write(tmp_path / "recorded", own)
    result = inner.run(
        """
        def test_backends(engine, baseline):
            assert baseline.of(engine.plan, "any").key == baseline.key
            assert baseline.entry is not None
            (found,) = baseline.backends(engine.loaded)
            assert (found.name, found.status) == ("attention", "red")
            assert found.found == engine.loaded.workers[0].get("attention", "not told")
        """,
        f"--hs-baselines={tmp_path / 'recorded'}",
    )
    result.assert_outcomes(passed=1)


class Terminal:
    """Takes what is written."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def section(self, title: str) -> None:
        self.lines.append(title)

    def write_line(self, line: str, **markup: bool) -> None:
        self.lines.append(line)


class Meter:
    """One device with a GiB in use."""

    def read(self) -> tuple[DeviceUse, ...]:
        return (DeviceUse(0, 1 << 30),)


class Session:
    """A keeper and what becomes of its session at the end."""

    def __init__(self, folder: Path | None) -> None:
        self.keeper = BaselineKeeper(Settings(record_baseline=folder))
        self.told: dict[str, object] = {}
        self.exitstatus = 0

    def engine(self, own: Key = KEY, stored: Sequence[Stored] = ()) -> EngineBaseline:
        made = EngineBaseline(own, stored, tell=self.told.__setitem__, meter=Meter())
        return self.keeper.keep(made)

    def finish(self, exitstatus: int = 0) -> list[str]:
        session: Any = self
        terminal: Any = Terminal()
        self.exitstatus = exitstatus
        self.keeper.pytest_sessionfinish(session, exitstatus)
        self.keeper.pytest_terminal_summary(terminal)
        return list(terminal.lines)


@pytest.mark.parametrize(
    ("runs", "exitstatus", "line"),
    [
        ([100.0, 110.0, 100.0, 100.0, 90.0], 0, "baseline.spread: 20.0%; files_tok_per_s: 100, 11"),
        (GOOD[:4], 0, "baseline.too-few-runs: 4 of 5"),
        (GOOD, 1, "the session did not pass"),
    ],
)
def test_what_is_no_baseline_fails_the_session_and_leaves_no_file(
    tmp_path: Path, runs: list[float], exitstatus: int, line: str
) -> None:
    session = Session(tmp_path / "new")
    session.engine().judge("files_tok_per_s", runs)
    assert line in session.finish(exitstatus)[-1]
    assert session.exitstatus == pytest.ExitCode.TESTS_FAILED
    assert not (tmp_path / "new").exists()


def test_one_refusal_keeps_the_others_and_fails_the_session(tmp_path: Path) -> None:
    session = Session(tmp_path)
    session.engine().judge("files_tok_per_s", GOOD)
    session.engine(replace(KEY, capture="native")).judge("files_tok_per_s", GOOD[:4])
    session.finish()
    assert [stored.baseline.key for stored in read_folders([tmp_path])] == [KEY]
    assert session.exitstatus == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize("folder", [None, Path("somewhere")])
def test_session_that_measures_nothing_says_and_records_nothing(folder: Path | None) -> None:
    session = Session(folder)
    session.engine()
    assert session.finish() == []
    assert session.exitstatus == 0


def test_another_card_is_not_comparable_and_the_summary_says_by_what() -> None:
    session = Session(None)
    stored = Stored(Path("a"), baseline(key=replace(KEY, gpu="NVIDIA A100")))
    found = session.engine(stored=[stored]).judge("files_tok_per_s", GOOD)
    assert not found.passed
    lines = session.finish()
    assert "  the nearest baseline differs in gpu: NVIDIA H200 here, NVIDIA A100 recorded" in lines
    assert "  files_tok_per_s: 100, not comparable" in lines


def test_load_memory_and_backends_are_kept_with_the_figures() -> None:
    session = Session(None)
    own = session.engine()
    loaded = Loaded({}, {}, [{"attention": "A", "pid": 7}], {"import": 1.0, "load": 60.5})
    assert own.backends(loaded) == ()
    measured = own.measured
    assert (measured.seen, measured.load_seconds) == ({"attention": "A"}, 60.5)
    assert measured.memory_bytes == (1 << 30,)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", measured.date)


def test_one_key_has_one_baseline_in_a_session() -> None:
    session = Session(None)
    assert session.engine() is session.engine(replace(KEY))
    assert session.engine() is not session.engine(replace(KEY, workload="other"))


@pytest.mark.parametrize(
    ("names", "gpu"),
    [
        ((), None),
        ((CARD, CARD), CARD),
        ((CARD, "NVIDIA A100"), "NVIDIA A100 and NVIDIA H200"),
    ],
)
def test_card_of_a_key_is_the_drivers_name_and_not_known_without_one(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], gpu: str | None
) -> None:
    monkeypatch.setattr("harness.plugin.baseline.model_name", lambda path: "m")
    versions = {"torch": "2.11.0"}
    plan: Any = SimpleNamespace(
        seen=SimpleNamespace(engine=SimpleNamespace(versions=versions, vllm=Version("0.26.0"))),
        options=SimpleNamespace(tensor_parallel_size=2, model=Path("m")),
        session=SimpleNamespace(name="patched", token_budget=8192),
        dtype="bfloat16",
    )
    found = key_of(plan, GpuCount(2, names, "told"), "w")
    assert (found.gpu, found.gpus, found.tensor_parallel_size) == (gpu, 2, 2)
    assert (found.vllm, found.torch, found.speculators) == ("0.26.0", "2.11.0", "absent")
