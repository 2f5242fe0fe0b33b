"""The output folder from its making to its end: publish, resume, finish."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from harness.dataset.folder import OutputFolder
from harness.dataset.manifest import parse_line, read_manifest
from harness.dataset.prompt_set import PromptSet
from harness.dataset.run_info import read_run
from harness.dataset.samples import file_checksum, read_sample
from harness.dataset.space import check_space, estimate_bytes
from harness.errors import CheckFailed, Refused
from tests.unit.datasets import (
    DEPTHS,
    HIDDEN,
    build,
    listing,
    make_prompts,
    out,
    prompts,
    publish,
    run_info,
    spool,
)

__all__ = ["out", "prompts"]


def test_new_folder_is_made_with_its_parents(tmp_path: Path, prompts: PromptSet) -> None:
    out = tmp_path / "a" / "b"
    with OutputFolder.open(out, run_info(prompts), prompts) as folder:
        assert folder.missing == [0, 1, 2, 3, 4]
        assert folder.spool.is_dir()
        assert folder.spool.stat().st_dev == out.stat().st_dev
    assert read_run(out)["state"] == "started"


def test_published_sample_has_its_final_name_and_one_manifest_line(
    out: Path, prompts: PromptSet
) -> None:
    with OutputFolder.open(out, run_info(prompts), prompts) as folder:
        path = spool(folder, prompts, 3)
        data = path.read_bytes()
        line = folder.publish(path, 3, checksum=file_checksum(path), bytes=len(data))
        assert not path.exists()
        assert folder.missing == [0, 1, 2, 4]
        # The line is there at once, not only when the folder is closed.
        (text,) = (out / "manifest.jsonl").read_bytes().splitlines()
        assert parse_line(text) == line
    assert (out / "hs_3.safetensors").read_bytes() == data
    assert json.loads(text) == {
        "id": "p3",
        "index": 3,
        "file": "hs_3.safetensors",
        "tokens": prompts[3].tokens,
        "checksum": file_checksum(out / "hs_3.safetensors"),
        "bytes": len(data),
        "loss_mask": None,
        "dtype": "float32",
    }


def test_manifest_names_the_loss_mask_by_its_content(out: Path, prompts: PromptSet) -> None:
    build(out, prompts)
    marks = [line.loss_mask for line in read_manifest(out).lines]
    assert [mark is None for mark in marks] == [p.loss_mask is None for p in prompts]
    assert len({mark for mark in marks if mark}) == 3


def test_finished_run_records_what_it_was(out: Path, prompts: PromptSet) -> None:
    info = run_info(prompts, patches=("b", "a"))
    with OutputFolder.open(out, info, prompts) as folder:
        for index in (4, 2, 0, 1, 3):
            publish(folder, prompts, index)
        folder.record(versions={"vllm": "0.32.0"}, engine={"max_model_len": 64})
        body = folder.finish(seconds=2.5)
    assert body == read_run(out)
    assert body["state"] == "complete"
    assert body["fingerprint"] == info.identity.fingerprint
    assert body["model"] == {"path": "/models/tiny", "fingerprint": "blake3:" + "a" * 64}
    assert body["layers"] == {"num_layers": 6}
    assert (body["columns"], body["hidden_size"]) == (len(DEPTHS), HIDDEN)
    assert body["versions"] == {"vllm": "0.32.0"}
    assert body["engine"] == {"max_model_len": 64}
    assert body["patches"] == ["a", "b"]
    assert body["prompts"]["kind"] == "jsonl"
    assert body["prompts"]["fingerprint"] == prompts.fingerprint
    assert body["counts"] == {
        "samples": 5,
        "tokens": prompts.tokens,
        "bytes": sum(path.stat().st_size for path in out.glob("hs_*")),
    }
    assert body["seconds"] == 2.5
    # A finished manifest is in order, however the samples came.
    assert [line.index for line in read_manifest(out).lines] == [0, 1, 2, 3, 4]
    assert not (out / ".spool").exists()
    assert not (out / ".publishing").exists()


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (KeyboardInterrupt(), "interrupted", "signal"),
        (RuntimeError("no such luck"), "failed", "RuntimeError: no such luck"),
        (
            Refused("host.gone", expected="a", found="the worker died", where="c", next="d"),
            "failed",
            "host.gone: the worker died",
        ),
        (SystemExit(3), "failed", "SystemExit: 3"),
    ],
)
def test_run_that_ends_early_says_how_and_goes_on(
    out: Path, prompts: PromptSet, error: BaseException, state: str, reason: str
) -> None:
    def end_early() -> None:
        with OutputFolder.open(out, run_info(prompts), prompts) as folder:
            publish(folder, prompts, 2)
            raise error

    with pytest.raises(type(error)):
        end_early()
    body = read_run(out)
    assert body["state"] == state
    assert reason in body["reason"]
    assert body["counts"]["samples"] == 1
    assert body["sessions"][0]["published"] == 1
    assert body["sessions"][0]["seconds"] is not None
    with OutputFolder.open(out, run_info(prompts), prompts) as folder:
        assert folder.missing == [0, 1, 3, 4]
        assert (read_run(out)["state"], read_run(out)["reason"]) == ("started", None)
        for index in folder.missing:
            publish(folder, prompts, index)
        folder.finish(seconds=1.0)
    assert (read_run(out)["state"], read_run(out)["reason"]) == ("complete", None)


def test_sample_behind_a_link_is_made_again_and_its_target_stays(
    out: Path, prompts: PromptSet, tmp_path: Path
) -> None:
    build(out, prompts)
    target = (out / "hs_2.safetensors").rename(tmp_path / "elsewhere")
    (out / "hs_2.safetensors").symlink_to(target)
    with OutputFolder.open(out, run_info(prompts), prompts) as folder:
        assert folder.missing == [2]
        assert dict(folder.healed.dropped) == {"hs_2.safetensors": "a link, not a file of its own"}
    assert target.is_file()


def test_failure_after_the_end_changes_nothing(out: Path, prompts: PromptSet) -> None:
    def end_then_fail() -> None:
        with OutputFolder.open(out, run_info(prompts), prompts) as folder:
            for index in folder.missing:
                publish(folder, prompts, index)
            folder.finish(seconds=1.0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        end_then_fail()
    assert read_run(out)["state"] == "complete"


def test_disk_that_fails_at_the_end_does_not_hide_the_first_error(
    out: Path, prompts: PromptSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    def run() -> None:
        with OutputFolder.open(out, run_info(prompts), prompts):
            monkeypatch.setattr("harness.dataset._run_file.atomic_write", fail)
            raise ValueError("first")

    with pytest.raises(ValueError, match="first"):
        run()
    monkeypatch.undo()
    assert read_run(out)["state"] == "started"
    OutputFolder.open(out, run_info(prompts), prompts).close()


def test_same_run_skips_what_is_whole_and_keeps_its_history(out: Path, prompts: PromptSet) -> None:
    with OutputFolder.open(out, run_info(prompts), prompts) as folder:
        publish(folder, prompts, 0)
        publish(folder, prompts, 3)
        folder.finish(seconds=1.0)
    assert read_run(out)["state"] == "incomplete"
    before = {path: path.stat().st_mtime_ns for path in out.glob("hs_*")}
    seen: list[tuple[int, int]] = []
    with OutputFolder.open(
        out, run_info(prompts), prompts, progress=lambda *now: seen.append(now)
    ) as folder:
        assert folder.missing == [1, 2, 4]
        assert not folder.healed.dropped
        for index in folder.missing:
            publish(folder, prompts, index)
        body = folder.finish(seconds=2.0)
    assert seen == [(1, 2), (2, 2)]
    assert body["state"] == "complete"
    assert body["seconds"] == 3.0
    assert [session["published"] for session in body["sessions"]] == [2, 3]
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())


def test_complete_run_opens_with_nothing_missing(out: Path, prompts: PromptSet) -> None:
    build(out, prompts)
    before = listing(out)
    with OutputFolder.open(out, run_info(prompts), prompts) as folder:
        assert folder.missing == []
        assert len(folder.whole) == 5
    changed = {name for name, data in listing(out).items() if before.get(name) != data}
    assert changed <= {"run.json", ".lock", ".publishing"}


@pytest.mark.parametrize("index", [0, 4])
def test_sample_shorter_than_its_writer_said_is_not_published(
    out: Path, prompts: PromptSet, index: int
) -> None:
    with OutputFolder.open(out, run_info(prompts), prompts) as folder:
        path = spool(folder, prompts, index)
        with pytest.raises(CheckFailed) as caught:
            folder.publish(path, index, checksum=file_checksum(path), bytes=9999)
        assert caught.value.failure.id == "dataset.short-sample"
        assert not list(out.glob("hs_*"))
        assert read_manifest(out).data == b""


def test_spool_file_that_is_gone_is_one_clear_error(out: Path, prompts: PromptSet) -> None:
    with OutputFolder.open(out, run_info(prompts), prompts) as folder:
        with pytest.raises(CheckFailed, match=r"dataset\.io-error") as caught:
            folder.publish(folder.spool / "0.safetensors", 0, checksum="blake3:", bytes=1)
        assert caught.value.failure.where.endswith("0.safetensors")
        assert folder.missing == [0, 1, 2, 3, 4]


def test_manifest_is_synced_now_and_then_and_at_the_end(
    out: Path, prompts: PromptSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def watch(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        real(fd)

    monkeypatch.setattr("os.fsync", watch)
    with OutputFolder.open(out, run_info(prompts), prompts) as folder:
        synced.clear()
        publish(folder, prompts, 0)
        assert synced == []
        monkeypatch.setattr("harness.dataset.folder._SYNC_S", 0.0)
        publish(folder, prompts, 1)
        assert synced == ["manifest.jsonl", "out"]
        synced.clear()
        folder.finish(seconds=1.0)
        assert synced[:2] == ["manifest.jsonl", "out"]


def test_one_prompt_cannot_be_published_twice(out: Path, prompts: PromptSet) -> None:
    with OutputFolder.open(out, run_info(prompts), prompts) as folder:
        publish(folder, prompts, 0)
        before = (out / "hs_0.safetensors").stat().st_mtime_ns
        with pytest.raises(CheckFailed, match="published-twice"):
            publish(folder, prompts, 0)
        assert (out / "hs_0.safetensors").stat().st_mtime_ns == before
        assert len(read_manifest(out).lines) == 1


def test_complete_cannot_be_claimed_with_samples_missing(out: Path, prompts: PromptSet) -> None:
    with OutputFolder.open(out, run_info(prompts), prompts) as folder:
        publish(folder, prompts, 0)
        with pytest.raises(CheckFailed, match="incomplete"):
            folder.finish(seconds=1.0, state="complete")


def test_spool_on_another_file_system_is_copied(
    tmp_path: Path, out: Path, prompts: PromptSet
) -> None:
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second file system at /dev/shm")
    path = other / f"hs-test-{os.getpid()}.safetensors"
    try:
        with OutputFolder.open(out, run_info(prompts), prompts) as folder:
            path.write_bytes(spool(folder, prompts, 0).read_bytes())
            size, checksum = path.stat().st_size, file_checksum(path)
            folder.publish(path, 0, checksum=checksum, bytes=size)
        assert not path.exists()
        assert file_checksum(out / "hs_0.safetensors") == checksum
        assert not list(out.glob(".*.part"))
    finally:
        path.unlink(missing_ok=True)


@pytest.mark.parametrize(
    "change",
    [
        {"file": "../hs_0.safetensors"},
        {"file": "/etc/passwd"},
        {"file": "hs_1.safetensors"},
        {"index": -1, "file": "hs_-1.safetensors"},
        {"index": True},
        {"index": "0"},
        {"tokens": 0},
        {"tokens": 1.5},
        {"checksum": "blake3:00"},
        {"checksum": "md5:" + "0" * 64},
        {"loss_mask": "yes"},
        {"loss_mask": 1},
        {"bytes": None},
        {"more": 1},
    ],
)
def test_manifest_line_with_another_meaning_is_refused(
    out: Path, prompts: PromptSet, change: dict[str, Any]
) -> None:
    build(out, prompts)
    text = (out / "manifest.jsonl").read_bytes().splitlines()[0]
    assert parse_line(text).index == 0
    with pytest.raises(ValueError, match=r".+"):
        parse_line(json.dumps({**json.loads(text), **change}).encode())


@pytest.mark.parametrize(("dtype", "itemsize"), [("float32", 4), ("bfloat16", 2)])
def test_estimate_is_close_to_what_a_dataset_takes(
    tmp_path: Path, dtype: str, itemsize: int
) -> None:
    prompts = make_prompts(tmp_path, 300)
    out = build(tmp_path / "out", prompts, dtype=dtype)
    real = sum(len(data) for data in listing(out).values())
    guess = estimate_bytes(prompts.tokens, len(DEPTHS), HIDDEN, itemsize, samples=300)
    # These samples are a hundred times smaller than real ones, so overheads weigh most here.
    assert abs(guess - real) / real < 0.05


def test_run_that_would_fill_the_disk_is_refused_before_it_starts(tmp_path: Path) -> None:
    free = check_space(tmp_path / "not" / "there", 0)
    assert free > 0
    with pytest.raises(Refused) as caught:
        check_space(tmp_path / "not" / "there", free)
    assert caught.value.failure.id == "dataset.no-space"
    assert "GB" in caught.value.failure.found or "TB" in caught.value.failure.found
    assert not (tmp_path / "not").exists()


def test_samples_read_back_from_a_finished_folder(out: Path, prompts: PromptSet) -> None:
    build(out, prompts, dtype="bfloat16")
    for prompt, line in zip(prompts, read_manifest(out).lines, strict=True):
        sample = read_sample(out / line.file, checksum=True)
        assert sample.checksum == line.checksum
        assert sample.dtype == line.dtype == "bfloat16"
        assert sample.token_ids.tolist() == prompt.token_list()
        assert sample.hidden.shape == (prompt.tokens, len(DEPTHS), HIDDEN)
