"""`harness baseline` from its command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.baseline import Baseline, read_file, write
from harness.cli import app as harness
from harness.cli._baseline import app
from tests.unit.baselines import KEY, baseline

GOOD, SLOW = [100.0, 101.0, 99.0, 100.0, 100.0], [80.0] * 5


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.stdout


def report(*arguments: object, code: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", code=code))


def printed(path: Path, *found: Baseline) -> Path:
    """Write figures as a GPU run leaves them."""
    lines = [json.dumps({"figures": {"baseline": each.to_json()}}) + "\n" for each in found]
    path.write_text("".join(lines))
    return path


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A folder with a baseline."""
    folder = tmp_path / "recorded"
    write(folder, baseline(files_tok_per_s=GOOD, seen={"attention": "A"}))
    return folder


def measured(tmp_path: Path, runs: list[float], **given: Any) -> Path:
    given = {"seen": {"attention": "A"}, **given}
    return printed(tmp_path / f"{runs[0]}.jsonl", baseline(files_tok_per_s=runs, **given))


def test_group_is_part_of_the_command_and_explains_itself() -> None:
    result = CliRunner().invoke(harness, ["baseline", "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert all(name in result.stdout for name in ("record", "show", "check"))


class TestRecord:
    def test_figures_become_one_file_a_key(self, tmp_path: Path) -> None:
        other = replace(KEY, capture="native")
        source = printed(tmp_path / "f.jsonl", baseline(), baseline(key=other))
        body = report("record", source, "--out", tmp_path / "out")
        assert [read_file(Path(path)).key for path in body["written"]] == [KEY, other]

    def test_what_other_tests_call_a_baseline_is_none(self, tmp_path: Path) -> None:
        source = printed(tmp_path / "f.jsonl", baseline())
        memory = json.dumps({"figures": {"memory_back_s": 0.1, "baseline": {"0": 0}}})
        source.write_text(f"{memory}\n{source.read_text()}{memory}\n")
        run("record", source, "--out", tmp_path / "out")
        assert len(list((tmp_path / "out").iterdir())) == 1

    def test_one_refusal_writes_nothing_at_all(self, tmp_path: Path) -> None:
        wide = baseline(key=replace(KEY, capture="native"), files_tok_per_s=[1, 2, 3, 4, 5])
        source = printed(tmp_path / "f.jsonl", baseline(), wide)
        body = report("record", source, "--out", tmp_path / "out", code=3)
        assert body["error"]["id"] == "baseline.spread"
        assert "1, 2, 3, 4, 5" in body["error"]["found"]
        assert not (tmp_path / "out").exists()

    def test_recorded_one_stays_until_it_may_be_replaced(
        self, tmp_path: Path, recorded: Path
    ) -> None:
        source = measured(tmp_path, SLOW)
        assert report("record", source, "--out", recorded, code=3)["error"]["id"] == (
            "baseline.exists"
        )
        (path,) = report("record", source, "--out", recorded, "--replace")["written"]
        assert read_file(Path(path)).figures["files_tok_per_s"].runs == tuple(SLOW)

    def test_file_without_figures_is_a_usage_error(self, tmp_path: Path) -> None:
        source = printed(tmp_path / "f.jsonl")
        body = report("record", source, "--out", tmp_path / "out", code=2)
        assert body["error"]["id"] == "baseline.nothing-to-record"


class TestShow:
    def test_own_baseline_comes_first_with_its_floor(self, recorded: Path) -> None:
        first, *others = report("show", "--folder", recorded)["baselines"]
        assert first["usable"] is True
        figure = first["figures"]["files_tok_per_s"]
        assert (figure["median"], figure["mad"], figure["floor"]) == (100.0, 0.0, 95.0)
        for each in others:
            assert each["usable"] or all("floor" not in f for f in each["figures"].values())

    def test_what_is_only_told_or_of_few_runs_is_marked_so(self) -> None:
        text = run("show")
        assert "reported, not measured here; never a floor" in text
        assert "1 x NVIDIA H200, native: measured 2026-11-29; no floor: too few runs" in text

    def test_missing_folder_is_a_usage_error(self, tmp_path: Path) -> None:
        body = report("show", "--folder", tmp_path / "none", code=2)
        assert body["error"]["id"] == "baseline.no-folder"


class TestCheck:
    def check(self, source: Path, recorded: Path, *more: object, code: int) -> Any:
        return report("check", source, "--folder", recorded, *more, code=code)

    def test_as_fast_as_recorded_is_green(self, tmp_path: Path, recorded: Path) -> None:
        (key,) = self.check(measured(tmp_path, GOOD), recorded, code=0)["keys"]
        assert [one["status"] for one in key["findings"]] == ["ok", "ok"]

    def test_slower_alone_is_not_red_and_not_green(self, tmp_path: Path, recorded: Path) -> None:
        (key,) = self.check(measured(tmp_path, SLOW), recorded, code=4)["keys"]
        assert key["findings"][0]["status"] == "unconfirmed"

    def test_slower_twice_is_red(self, tmp_path: Path, recorded: Path) -> None:
        again = measured(tmp_path, [81.0] * 5)
        source = measured(tmp_path, SLOW)
        (key,) = self.check(source, recorded, "--rerun", again, code=1)["keys"]
        assert key["findings"][0]["status"] == "red"

    def test_slower_once_is_a_warning(self, tmp_path: Path, recorded: Path) -> None:
        source, again = measured(tmp_path, SLOW), measured(tmp_path, GOOD)
        (key,) = self.check(source, recorded, "--rerun", again, code=0)["keys"]
        assert key["findings"][0]["status"] == "warn"

    def test_rerun_of_another_key_confirms_nothing(self, tmp_path: Path, recorded: Path) -> None:
        again = measured(tmp_path, [81.0] * 5, key=replace(KEY, torch="9"))
        self.check(measured(tmp_path, SLOW), recorded, "--rerun", again, code=4)

    def test_other_key_is_not_comparable_and_says_why(self, tmp_path: Path, recorded: Path) -> None:
        source = measured(tmp_path, GOOD, key=replace(KEY, vllm="0.27.0"))
        (key,) = self.check(source, recorded, code=4)["keys"]
        (finding,) = key["findings"]
        assert finding["status"] == "not comparable"
        assert "vllm: 0.27.0 here, 0.26.0 recorded" in finding["why"]
        text = run("check", source, "--folder", recorded, code=4)
        assert "not comparable" in text

    def test_other_attention_backend_is_red_however_fast(
        self, tmp_path: Path, recorded: Path
    ) -> None:
        source = measured(tmp_path, GOOD, seen={"attention": "B"})
        (key,) = self.check(source, recorded, code=1)["keys"]
        assert [one["status"] for one in key["findings"]] == ["ok", "red"]
