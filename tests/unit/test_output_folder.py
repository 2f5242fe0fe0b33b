from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.dataset._files import atomic_write
from harness.dataset.folder import OutputFolder
from harness.dataset.manifest import parse_line, read_manifest
from harness.dataset.prompt_set import PromptSet
from harness.dataset.run_info import RunIdentity, read_run
from harness.dataset.samples import file_checksum, read_sample
from harness.dataset.space import check_space, estimate_bytes
from harness.errors import CheckFailed, ExitCode, HarnessError, Refused
from tests.unit.datasets import (
    DEPTHS,
    HIDDEN,
    build,
    encode_sample,
    make_hidden,
    make_prompts,
    publish,
    run_info,
    spool,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture
def prompts(tmp_path: Path) -> PromptSet:
    return make_prompts(tmp_path)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def refusal(out: Path, prompts: PromptSet, /, **changes: Any) -> HarnessError:
    with pytest.raises(Refused) as caught:
        OutputFolder.open(out, run_info(prompts, **changes), prompts)
    assert caught.value.exit_code is ExitCode.REFUSED
    return caught.value


def listing(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


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


@pytest.mark.parametrize(
    ("changes", "field", "ours", "theirs"),
    [
        ({"model": "blake3:" + "b" * 64}, "model", "blake3:bbbb", "blake3:aaaa"),
        ({"depths": (1, 4, 6)}, "depths", "[1, 4, 6]", "[1, 3, 6]"),
        ({"depths": (3, 1, 6)}, "depths", "[3, 1, 6]", "[1, 3, 6]"),
        ({"layout": "raw"}, "layout", "raw", "training"),
        ({"dtype": "bfloat16"}, "dtype", "bfloat16", "float32"),
        ({"capture": "patched"}, "capture", "patched", "native"),
        ({"vllm": "0.33.0"}, "vllm", "0.33.0", "0.32.0"),
        ({"patches": ("x",)}, "patches", '["x"]', "[]"),
        ({"prompts": "blake3:" + "c" * 64}, "prompts", "blake3:cccc", "blake3:"),
    ],
)
def test_another_run_is_refused_by_the_field_that_differs(
    out: Path, prompts: PromptSet, changes: dict[str, Any], field: str, ours: str, theirs: str
) -> None:
    build(out, prompts)
    before = listing(out)
    error = refusal(out, prompts, **changes)
    assert error.failure.id == "dataset.other-run"
    assert error.details["differs"] == [field]
    assert error.failure.expected.startswith(f"{field} {ours}")
    assert error.failure.found.startswith(f"{field} {theirs}")
    assert "--out" in error.failure.next
    assert listing(out) == before


def test_every_field_of_the_identity_is_in_the_fingerprint(prompts: PromptSet) -> None:
    base = run_info(prompts).identity
    changed = {
        "model": "m", "depths": (6,), "layout": "raw", "dtype": "float16", "capture": "x",
        "prompts": "p", "vllm": "1", "patches": ("a",),
    }  # fmt: skip
    assert changed.keys() == set(RunIdentity.__dataclass_fields__)
    prints = {
        run_info(prompts, **{name: value}).identity.fingerprint for name, value in changed.items()
    }
    assert len(prints | {base.fingerprint}) == len(changed) + 1
    assert run_info(prompts, patches=("a", "b")).identity.fingerprint == (
        run_info(prompts, patches=("b", "a")).identity.fingerprint
    )


def test_foreign_folder_is_refused_and_left_alone(out: Path, prompts: PromptSet) -> None:
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    before = listing(out)
    failure = refusal(out, prompts).failure
    assert failure.id == "dataset.foreign-folder"
    assert "thesis.tex" in failure.found
    assert listing(out) == before


def test_manifest_without_a_run_is_foreign(out: Path, prompts: PromptSet) -> None:
    build(out, prompts)
    (out / "run.json").unlink()
    assert refusal(out, prompts).failure.id == "dataset.foreign-folder"


def test_somebody_elses_manifest_is_not_overwritten(out: Path, prompts: PromptSet) -> None:
    out.mkdir()
    (out / "manifest.jsonl").write_text('{"of": "another tool"}\n')
    assert refusal(out, prompts).failure.id == "dataset.foreign-folder"
    assert [path.name for path in out.iterdir()] == ["manifest.jsonl"]


def test_file_in_the_place_of_the_folder_is_refused(out: Path, prompts: PromptSet) -> None:
    out.write_text("a file")
    assert refusal(out, prompts).failure.id == "dataset.not-a-folder"
    assert out.read_text() == "a file"


def test_folder_that_cannot_be_read_is_refused(out: Path, prompts: PromptSet) -> None:
    out.symlink_to(out)
    failure = refusal(out, prompts).failure
    assert failure.id == "dataset.unreachable"
    assert "symbolic links" in failure.found


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 99}', "\xff"])
def test_unreadable_run_file_is_refused(out: Path, prompts: PromptSet, text: str) -> None:
    build(out, prompts)
    (out / "run.json").write_text(text, encoding="latin-1")
    assert refusal(out, prompts).failure.id == "dataset.run-unreadable"
    assert len(list(out.glob("hs_*"))) == 5


@pytest.mark.parametrize("leftover", [".lock", ".publishing", ".run.json.tmp", "lost+found/x"])
def test_what_a_crashed_start_leaves_is_no_obstacle(
    out: Path, prompts: PromptSet, leftover: str
) -> None:
    path = out / leftover
    path.parent.mkdir(parents=True)
    path.write_text("")
    build(out, prompts)
    assert read_run(out)["state"] == "complete"


def test_second_writer_is_refused_by_name_and_the_first_goes_on(
    out: Path, prompts: PromptSet
) -> None:
    with OutputFolder.open(out, run_info(prompts), prompts) as folder:
        publish(folder, prompts, 0)
        failure = refusal(out, prompts).failure
        assert failure.id == "dataset.locked"
        assert str(os.getpid()) in failure.found
        for index in folder.missing:
            publish(folder, prompts, index)
        folder.finish(seconds=1.0)
    with OutputFolder.open(out, run_info(prompts), prompts) as folder:
        assert folder.missing == []


HOLD = """
import sys, time
from pathlib import Path
from harness.dataset._lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


def test_lock_of_a_dead_process_is_no_obstacle(out: Path, prompts: PromptSet) -> None:
    build(out, prompts)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(out)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        failure = refusal(out, prompts).failure
        assert failure.id == "dataset.locked"
        assert str(holder.pid) in failure.found
    finally:
        holder.kill()
        holder.wait()
    assert (out / ".lock").exists()
    OutputFolder.open(out, run_info(prompts), prompts).close()


def test_refused_lock_leaves_the_other_runs_folder(
    out: Path, prompts: PromptSet, monkeypatch: Any
) -> None:
    """The other run begins between the first look (no folder) and the lock."""
    from harness.dataset import folder as module

    first: list[OutputFolder] = []
    make = module.make_folder

    def other_run_is_faster(path: Path) -> bool:
        made = make(path)
        monkeypatch.setattr(module, "make_folder", make)
        first.append(OutputFolder.open(out, run_info(prompts), prompts))
        publish(first[0], prompts, 0)
        return made

    monkeypatch.setattr(module, "make_folder", other_run_is_faster)
    assert refusal(out, prompts).failure.id == "dataset.locked"
    assert (out / "hs_0.safetensors").exists()
    first[0].close()


def damage_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def damage_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [(damage_bit, "checksum"), (damage_cut, "bytes"), (Path.unlink, "gone")],
)
def test_damaged_sample_is_removed_and_made_again(
    out: Path, prompts: PromptSet, damage: Any, reason: str
) -> None:
    build(out, prompts)
    damage(out / "hs_2.safetensors")
    with OutputFolder.open(out, run_info(prompts), prompts) as folder:
        ((file, why),) = folder.healed.dropped
        assert file == "hs_2.safetensors"
        assert reason in why
        assert folder.missing == [2]
        assert not (out / "hs_2.safetensors").exists()
        assert [line.index for line in read_manifest(out).lines] == [0, 1, 3, 4]


@pytest.mark.parametrize("field", ["id", "tokens", "loss_mask", "dtype"])
def test_manifest_line_of_another_prompt_is_not_trusted(
    out: Path, prompts: PromptSet, field: str
) -> None:
    with OutputFolder.open(out, run_info(prompts), prompts) as folder:
        publish(folder, prompts, 0)
        publish(folder, prompts, 1)
    manifest = out / "manifest.jsonl"
    first, second = (json.loads(text) for text in manifest.read_text().splitlines())
    wrong = {"id": "p4", "tokens": 3, "loss_mask": None, "dtype": "float16"}
    second[field] = wrong[field]
    manifest.write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")
    with OutputFolder.open(out, run_info(prompts), prompts) as folder:
        assert folder.missing == [1, 2, 3, 4]
        assert "does not fit" in folder.healed.dropped[0][1]


def test_line_beyond_the_prompts_is_dropped_with_its_file(out: Path, prompts: PromptSet) -> None:
    build(out, prompts)
    manifest = out / "manifest.jsonl"
    extra = json.loads(manifest.read_text().splitlines()[0])
    extra.update(index=9, file="hs_9.safetensors", id="p9")
    with manifest.open("a") as file:
        file.write(json.dumps(extra) + "\n")
    (out / "hs_9.safetensors").write_bytes((out / "hs_0.safetensors").read_bytes())
    with OutputFolder.open(out, run_info(prompts), prompts) as folder:
        assert folder.missing == []
    assert not (out / "hs_9.safetensors").exists()
    assert len(read_manifest(out).lines) == 5


def test_garbage_behind_good_lines_is_cleaned_away(out: Path, prompts: PromptSet) -> None:
    build(out, prompts)
    manifest = out / "manifest.jsonl"
    good = manifest.read_bytes()
    for garbage in (b'{"id": "p', b"\0\0\0\0\n", b"\n"):
        manifest.write_bytes(good + garbage)
        with OutputFolder.open(out, run_info(prompts), prompts) as folder:
            assert folder.missing == []
        assert manifest.read_bytes() == good


def test_atomic_write_shows_the_old_content_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")
    reader = path.open("rb")
    atomic_write(path, b"new and longer")
    # Who opened the old file still reads the old file: it was replaced, not written over.
    assert reader.read() == b"old"
    reader.close()
    assert path.read_bytes() == b"new and longer"

    def fail(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="No space"):
        atomic_write(path, b"newer")
    assert path.read_bytes() == b"new and longer"
    assert [entry.name for entry in tmp_path.iterdir()] == ["f"]


def test_torn_last_manifest_line_is_healed(out: Path, prompts: PromptSet) -> None:
    with OutputFolder.open(out, run_info(prompts), prompts) as folder:
        publish(folder, prompts, 0)
        publish(folder, prompts, 1)
    manifest = out / "manifest.jsonl"
    whole = manifest.read_bytes()
    for size in (*range(len(whole) // 2 + 2, len(whole), 40), len(whole) - 1):
        manifest.write_bytes(whole[:size])
        with OutputFolder.open(out, run_info(prompts), prompts) as folder:
            # What was being published last is known from the intent, so nothing is redone.
            assert folder.missing == [2, 3, 4]
            assert folder.healed.torn == 1
            assert folder.healed.adopted == (1,)
            assert manifest.read_bytes() == whole
            publish_again(folder, prompts)


def publish_again(folder: OutputFolder, prompts: PromptSet) -> None:
    """Put the intent of sample 1 back, as if it had just been published."""
    line = folder.whole[1]
    (folder.path / ".publishing").write_bytes(line.encode())


def test_crash_between_rename_and_manifest_line_is_healed(out: Path, prompts: PromptSet) -> None:
    with OutputFolder.open(out, run_info(prompts), prompts) as folder:
        publish(folder, prompts, 0)
        publish(folder, prompts, 1)
    manifest = out / "manifest.jsonl"
    manifest.write_bytes(manifest.read_bytes().splitlines(keepends=True)[0])
    with OutputFolder.open(out, run_info(prompts), prompts) as folder:
        assert folder.healed.adopted == (1,)
        assert folder.missing == [2, 3, 4]


def test_sample_that_nobody_vouches_for_is_not_adopted(out: Path, prompts: PromptSet) -> None:
    with OutputFolder.open(out, run_info(prompts), prompts) as folder:
        publish(folder, prompts, 0)
    (out / "hs_1.safetensors").write_bytes(
        encode_sample(make_hidden(prompts[1].tokens, 1), prompts[1].token_list())
    )
    with OutputFolder.open(out, run_info(prompts), prompts) as folder:
        assert folder.healed.dropped == (("hs_1.safetensors", "no manifest line"),)
        assert folder.missing == [1, 2, 3, 4]


def test_leftovers_in_the_spool_are_never_published(out: Path, prompts: PromptSet) -> None:
    with OutputFolder.open(out, run_info(prompts), prompts) as folder:
        spool(folder, prompts, 1)
        (folder.spool / "2.safetensors.tmp").write_bytes(b"half")
    with OutputFolder.open(out, run_info(prompts), prompts) as folder:
        assert list(folder.spool.iterdir()) == []
        assert folder.missing == [0, 1, 2, 3, 4]


def test_users_own_notes_in_a_run_folder_survive_a_resume(out: Path, prompts: PromptSet) -> None:
    build(out, prompts)
    (out / "NOTES.md").write_text("mine")
    OutputFolder.open(out, run_info(prompts), prompts).close()
    assert (out / "NOTES.md").read_text() == "mine"


def test_deleted_or_changed_prompts_beside_are_written_again(out: Path, prompts: PromptSet) -> None:
    build(out, prompts)
    arrow = out / "prompts_arrow"
    before = listing(arrow)
    damage_bit(arrow / "data-00000-of-00001.arrow")
    (arrow / "state.json").unlink()
    OutputFolder.open(out, run_info(prompts), prompts).close()
    assert listing(arrow) == before


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
