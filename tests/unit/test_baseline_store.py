"""Baselines: their keys, what may be one, their files, and where figures come from."""

from __future__ import annotations

import errno
import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from harness import models
from harness.baseline import (
    Baseline,
    Key,
    Origin,
    Series,
    Status,
    Stored,
    compare,
    differences,
    exit_code,
    find,
    model_name,
    packed,
    read_file,
    read_folders,
    seen,
    series,
    write,
)
from harness.baseline.sources import read_evidence, read_source
from harness.errors import CheckFailed, HarnessError, Refused, UsageError
from tests.unit.baselines import KEY, baseline

ROOT = Path(__file__).parents[2]


class TestKeys:
    @pytest.mark.parametrize("field", [field.name for field in fields(Key)])
    def test_each_field_alone_keeps_two_keys_apart(self, field: str) -> None:
        value = getattr(KEY, field)
        other = replace(KEY, **{field: value + 1 if isinstance(value, int) else f"{value}x"})
        (difference,) = differences(KEY, other)
        assert difference.field == field
        assert KEY.file_name != other.file_name
        found = find(other, [Stored(Path("a"), baseline())])
        assert found.entry is None
        assert f"{field}: {getattr(other, field)} here, {value} recorded" in found.reason

    def test_what_is_not_known_is_equal_to_nothing(self) -> None:
        unknown = replace(KEY, gpu=None)
        assert [each.field for each in differences(unknown, unknown)] == ["gpu"]
        found = find(unknown, [Stored(Path("a"), baseline(key=unknown))])
        assert found.entry is None
        assert found.reason == "not known here: gpu"

    def test_equal_keys_have_no_difference_and_one_file(self) -> None:
        same = Key.from_json(json.loads(json.dumps(KEY.to_json())))
        assert differences(KEY, same) == ()
        assert KEY.file_name == same.file_name
        assert KEY.file_name.startswith("nvidia-h200-x1-tp1-patched-kimi-k2.5-slice")

    def test_reason_names_the_nearest_baseline(self) -> None:
        far = replace(KEY, vllm="0.1", torch="1.0", gpu="NVIDIA A100")
        near = replace(KEY, vllm="0.25.0")
        stored = [Stored(Path(str(n)), baseline(key=key)) for n, key in enumerate((far, near))]
        reason = find(KEY, stored).reason
        assert reason == "the nearest baseline differs in vllm: 0.26.0 here, 0.25.0 recorded"

    def test_stronger_folder_wins(self) -> None:
        mine, theirs = baseline(note="mine"), baseline(note="theirs")
        found = find(KEY, [Stored(Path("a"), mine), Stored(Path("b"), theirs)])
        assert found.entry is mine

    def test_model_is_named_by_what_decides_its_speed(self, tmp_path: Path) -> None:
        slice_ = models.make("kimi-k2.5-slice", tmp_path / "s", layers=4, architecture="plain")
        assert model_name(slice_) == "kimi-k2.5-slice, plain, 4 layers, int4, weights made at load"
        config = json.loads((slice_ / "config.json").read_text())
        config["moe_intermediate_size"] = 1024
        (slice_ / "config.json").write_text(json.dumps(config))
        assert model_name(slice_).startswith("blake3:")


class TestAdmission:
    def test_five_runs_within_five_percent_are_a_baseline(self) -> None:
        assert baseline(files_tok_per_s=[100, 101, 102, 103, 98]).usable

    @pytest.mark.parametrize(
        ("changes", "id", "text"),
        [
            ({"files_tok_per_s": [100, 101, 99, 100]}, "too-few-runs", "4 of 5"),
            ({"files_tok_per_s": [100, 103, 100, 100, 97]}, "spread", "6.0%"),
            ({"origin": Origin.REPORTED}, "reported", "reported"),
            ({"key": replace(KEY, torch=None)}, "unknown-key", "torch"),
            ({"figures": {}}, "no-figures", "none"),
        ],
    )
    def test_what_is_no_baseline_is_refused_shown_and_never_a_floor(
        self, changes: dict[str, Any], id: str, text: str, tmp_path: Path
    ) -> None:
        entry = baseline(**changes)
        with pytest.raises(Refused) as caught:
            write(tmp_path / "out", entry)
        assert caught.value.failure.id == f"baseline.{id}"
        assert text in caught.value.failure.found
        assert not (tmp_path / "out").exists()
        assert entry.series("files_tok_per_s") is None
        found = find(entry.key, [Stored(Path("a"), entry)])
        assert found.entry is None
        assert found.reason

    def test_refusal_for_spread_shows_every_run(self) -> None:
        (problem,) = baseline(files_tok_per_s=[100, 110, 105, 100, 100]).problems
        assert "100, 110, 105, 100, 100" in problem.failure.found

    def test_one_wide_figure_refuses_the_whole(self) -> None:
        wide = baseline(files_tok_per_s=[100] * 5, ratio=[0.9, 0.95, 1.0, 0.95, 0.95])
        assert not wide.usable
        assert wide.series("files_tok_per_s") is None


class TestFiles:
    def test_file_gives_back_what_was_written(self, tmp_path: Path) -> None:
        entry = baseline(seen={"runner": "r"}, load_seconds=12.5, memory_bytes=(1 << 30,))
        path = write(tmp_path / "made" / "here", entry)
        assert read_file(path) == entry
        assert path.name == KEY.file_name
        assert [one.name for one in path.parent.iterdir()] == [path.name]

    def test_second_baseline_of_a_key_is_refused_until_it_may_replace(self, tmp_path: Path) -> None:
        path = write(tmp_path, baseline(note="first"))
        before = path.read_bytes()
        with pytest.raises(Refused, match=r"baseline\.exists"):
            write(tmp_path, baseline(note="second"))
        assert path.read_bytes() == before
        assert len(list(tmp_path.iterdir())) == 1
        write(tmp_path, baseline(note="second"), replace=True)
        assert read_file(path).note == "second"

    @pytest.mark.parametrize("name", ["replace", "hardlink_to"])
    def test_write_that_fails_at_its_last_step_changes_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        def full(*paths: Path) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        old = write(tmp_path, baseline(note="old")) if name == "replace" else None
        monkeypatch.setattr(Path, name, full)
        with pytest.raises(Refused, match=r"baseline\.unwritable(.|\n)*No space left"):
            write(tmp_path, baseline(note="new"), replace=name == "replace")
        assert list(tmp_path.iterdir()) == ([old] if old else [])
        assert old is None or read_file(old).note == "old"

    def test_folder_that_is_a_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(Refused, match=r"baseline\.unwritable"):
            write(tmp_path / "file", baseline())

    @pytest.mark.parametrize(
        "damage",
        [
            lambda body: body.update(schema=2),
            lambda body: body.pop("figures"),
            lambda body: body.update(origin="guessed"),
            lambda body: body["key"].pop("gpu"),
            lambda body: body["key"].update(gpus="1"),
            lambda body: body["key"].update(driver="1"),
            lambda body: body["figures"].update(ratio=[]),
            lambda body: body["figures"].update(ratio=[1.0, "fast"]),
            lambda body: body["figures"].update(ratio=0.9),
            lambda body: body["figures"].update(seconds=[1.0]),
            lambda body: body.update(load_seconds="long"),
            lambda body: body.update(seen={"runner": 1}),
        ],
    )
    def test_broken_file_is_named_and_never_passed_over(
        self, tmp_path: Path, damage: Callable[[dict[str, Any]], None]
    ) -> None:
        path = write(tmp_path, baseline())
        body = json.loads(path.read_text())
        damage(body)
        path.write_text(json.dumps(body))
        with pytest.raises(CheckFailed, match=r"baseline\.broken(.|\n)*" + path.name):
            read_folders([tmp_path])

    @pytest.mark.parametrize("text", ["", "[]", "{", "null"])
    def test_file_without_an_object_is_broken(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "a.json").write_text(text)
        with pytest.raises(CheckFailed, match=r"baseline\.broken"):
            read_folders([None, tmp_path])


class TestSeen:
    WORKER: ClassVar = {
        "runner": "r",
        "attention": "A",
        "methods": {"M": 5, "L": 2},
        "block_size": 64,
    }

    def test_facts_of_workers_that_agree_are_told_once(self) -> None:
        assert seen([self.WORKER, {**self.WORKER, "pid": 1}]) == {
            "runner": "r",
            "attention": "A",
            "methods": "L x 2, M x 5",
            "block_size": "64",
        }

    def test_worker_that_differs_is_a_difference(self) -> None:
        known = seen([self.WORKER])
        odd = seen([self.WORKER, {**self.WORKER, "attention": "B"}])
        assert [one.name for one in compare(known, odd) if not one.passed] == ["attention"]

    @pytest.mark.parametrize(
        "change",
        [{"attention": "B"}, {"block_size": 16}, {"methods": {"M": 4, "L": 3}}, {"runner": "v2"}],
    )
    def test_other_backend_kernel_or_block_size_is_red(self, change: dict[str, Any]) -> None:
        found = compare(seen([self.WORKER]), seen([{**self.WORKER, **change}]))
        (red,) = [one for one in found if one.status is Status.RED]
        assert red.name == next(iter(change))
        with pytest.raises(CheckFailed, match=r"baseline\.other-backend"):
            red.require()

    def test_fact_that_is_no_longer_told_is_red(self) -> None:
        (red,) = compare({"runner": "r"}, {})
        assert (red.status, red.found) == (Status.RED, "not told")

    def test_same_engine_has_no_difference(self) -> None:
        found = compare(seen([self.WORKER]), seen([self.WORKER]))
        assert len(found) == 4
        assert exit_code(found) == 0


class TestShipped:
    def test_every_baseline_that_comes_along_is_whole_and_under_its_keys_name(self) -> None:
        stored = read_folders([packed()])
        assert stored
        for each in stored:
            if each.baseline.usable:
                assert each.path.name == each.baseline.key.file_name

    def test_the_storys_box_is_shown_and_is_never_a_floor(self) -> None:
        (story,) = [
            each.baseline
            for each in read_folders([packed()])
            if each.baseline.origin is Origin.REPORTED
        ]
        assert story.figures["tok_per_s"].runs == (2280.0,)
        assert (story.key.gpus, story.key.speculators) == (8, "0.3.0")
        assert "not measured here" in story.note
        assert story.series("tok_per_s") is None
        whole = replace(story.key, torch="2.11.0", token_budget=8192)
        assert find(whole, [Stored(Path("a"), replace(story, key=whole))]).entry is None

    def test_figures_of_before_baselines_have_too_few_runs(self) -> None:
        path = ROOT / "fixtures" / "evidence" / "2026-11-29-h200-two-captures.json"
        found = read_evidence(path)
        assert {each.key.gpu for each in found} == {"NVIDIA H200"}
        assert len(found) == 7
        for each in found:
            assert "baseline.too-few-runs" in [one.failure.id for one in each.problems]
        rates = found[0].figures["files_tok_per_s"].runs
        assert rates[0] == pytest.approx(65536 / 1.316)

    def test_every_evidence_file_can_be_read(self) -> None:
        for path in (ROOT / "fixtures" / "evidence").glob("*.json"):
            read_evidence(path)


class TestSources:
    LINE: ClassVar = {
        "test": "t",
        "figures": {"capture": "patched", "baseline": baseline().to_json()},
    }
    OTHER: ClassVar = {"test": "t", "figures": {"ratio": 0.9}}

    def lines(self) -> str:
        return "".join(json.dumps(line) + "\n" for line in (self.OTHER, self.LINE)) + "\n"

    def test_lines_evidence_and_bundle_of_one_run_say_the_same(self, tmp_path: Path) -> None:
        lines, evidence = tmp_path / "figures.jsonl", tmp_path / "evidence.json"
        lines.write_text(self.lines())
        evidence.write_text(json.dumps({"runs": [{"figures": [self.OTHER, self.LINE]}, {}]}))
        bundle = tmp_path / "bundle.tar.gz"
        with tarfile.open(bundle, "w:gz") as tar:
            for name in ("a/output.txt", "bundle/figures.jsonl"):
                info = tarfile.TarInfo(name)
                info.size = len(self.lines())
                tar.addfile(info, io.BytesIO(self.lines().encode()))
        for source in (lines, evidence, bundle):
            assert read_source(source) == (baseline(),)
        assert read_evidence(evidence) == (baseline(),)

    def test_line_that_a_test_printed_alone_is_read_too(self, tmp_path: Path) -> None:
        lines = tmp_path / "figures.jsonl"
        lines.write_text(json.dumps(self.LINE["figures"]))
        assert read_source(lines) == (baseline(),)

    @pytest.mark.parametrize(
        ("text", "id"),
        [
            ("", "nothing-to-record"),
            ('{"figures": {"ratio": 1}}', "nothing-to-record"),
            ("no json", "no-source"),
            ('{"figures": {"baseline": {"schema": 9}}}', "no-source"),
            (json.dumps(LINE) + "\n" + json.dumps(LINE), "twice"),
        ],
    )
    def test_bad_source_is_refused(self, tmp_path: Path, text: str, id: str) -> None:
        lines = tmp_path / "figures.jsonl"
        lines.write_text(text)
        with pytest.raises(UsageError, match=rf"baseline\.{id}"):
            read_source(lines)

    def test_missing_or_cut_bundle_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "cut.tar.gz").write_bytes(b"\x1f\x8b\x08")
        for name in ("cut.tar.gz", "none.jsonl"):
            with pytest.raises(UsageError, match=r"baseline\.no-source"):
                read_source(tmp_path / name)


def test_series_of_whole_numbers_is_read_as_numbers() -> None:
    assert series("ratio", [1, 2]) == Series("ratio", (1.0, 2.0))
    with pytest.raises(HarnessError):
        series("ratio", [True])


def test_baseline_reads_what_it_wrote() -> None:
    assert Baseline.from_json(json.loads(json.dumps(baseline().to_json()))) == baseline()
