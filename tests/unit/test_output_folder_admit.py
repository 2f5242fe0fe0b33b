"""Which folder a run may write into: its own, that nobody else is writing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.dataset.folder import OutputFolder
from harness.dataset.prompt_set import PromptSet
from harness.dataset.run_info import RunIdentity, read_run
from harness.errors import ExitCode, HarnessError, Refused
from tests.unit.datasets import (
    build,
    listing,
    out,
    prompts,
    publish,
    run_info,
)

__all__ = ["out", "prompts"]

ROOT = Path(__file__).parents[2]


def refusal(out: Path, prompts: PromptSet, /, **changes: Any) -> HarnessError:
    with pytest.raises(Refused) as caught:
        OutputFolder.open(out, run_info(prompts, **changes), prompts)
    assert caught.value.exit_code is ExitCode.REFUSED
    return caught.value


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
