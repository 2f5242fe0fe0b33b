"""What a resume finds damaged, torn or left over, and what becomes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.dataset._files import atomic_write
from harness.dataset.folder import OutputFolder
from harness.dataset.manifest import read_manifest
from harness.dataset.prompt_set import PromptSet
from tests.unit.datasets import (
    build,
    encode_sample,
    listing,
    make_hidden,
    out,
    prompts,
    publish,
    run_info,
    spool,
)

__all__ = ["out", "prompts"]


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
