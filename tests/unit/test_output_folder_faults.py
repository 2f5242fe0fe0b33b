"""The output folder under kill -9 and under a failing disk."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.dataset.folder import OutputFolder
from harness.dataset.manifest import read_manifest
from harness.dataset.samples import file_checksum
from harness.dataset.space import check_space
from harness.dataset.verify import verify
from harness.errors import Failure, Refused
from tests.unit.datasets import build, make_prompts, run_info, spool

ROOT = Path(__file__).parents[2]


@pytest.fixture
def fast_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: these tests sync thousands of times."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(dir=memory, prefix="hs-test-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def crash_points(folder: Path, *mode: str) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.crash_points", str(folder), *mode],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    result: dict[str, int] = json.loads(done.stdout)
    return result


def test_kill_at_every_step_of_a_run_loses_and_repeats_nothing(fast_folder: Path) -> None:
    result = crash_points(fast_folder, "kill")
    assert result["points"] > 40


def test_kill_at_random_times_loses_and_repeats_nothing(fast_folder: Path) -> None:
    assert crash_points(fast_folder, "random")["points"] > 12


@pytest.mark.parametrize(
    ("code", "id"),
    [
        (errno.ENOSPC, "dataset.disk-full"),
        (errno.EIO, "dataset.io-error"),
        # Stays as a full disk does; a real one is below.
        pytest.param(errno.EROFS, "dataset.read-only", marks=pytest.mark.slow),
    ],
)
def test_disk_failing_at_any_step_gives_one_error_and_leaves_nothing_half_written(
    fast_folder: Path, code: int, id: str
) -> None:
    seen = crash_points(fast_folder, str(code), "stays" if code != errno.EIO else "once")
    silent = seen.pop("no error")
    assert list(seen) == [id]
    assert seen[id] > 30
    # The run that met no fault, and faults in what only helps: the lock's note, clean-up.
    assert silent <= 5


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path, *, leave: int) -> None:
    (folder / "ballast").unlink(missing_ok=True)
    free = shutil.disk_usage(folder).free
    with (folder / "ballast").open("wb") as ballast:
        ballast.write(b"\0" * (free - leave))


def test_real_full_disk_keeps_what_was_published_and_resumes_when_there_is_room(
    tmp_path: Path,
) -> None:
    prompts = make_prompts(tmp_path, 40)
    with small_disk(tmp_path / "disk", "1m") as disk:
        out = disk / "out"
        with OutputFolder.open(out, run_info(prompts), prompts) as folder:
            paths = [spool(folder, prompts, index) for index in range(40)]
            expected = [file_checksum(path) for path in paths]
            fill(disk, leave=0)
            index, failure = publish_until_full(folder, paths)
            assert failure.id == "dataset.disk-full"
            assert "run the same command again" in failure.next
            # What could not be listed went back to where it was.
            assert file_checksum(paths[index]) == expected[index]
            assert folder.missing == list(range(index, 40))
        text = read_manifest(out)
        assert not text.broken
        assert [line.index for line in text.lines] == list(range(index))
        assert {path.name for path in out.glob("hs_*")} == {line.file for line in text.lines}
        with pytest.raises(Refused) as refused:
            check_space(out, 100_000)
        assert refused.value.failure.id == "dataset.no-space"
        (disk / "ballast").unlink()
        with OutputFolder.open(out, run_info(prompts), prompts) as folder:
            assert sorted(folder.whole) == list(range(index))
        build(out, prompts)
        assert verify(out).ok


def publish_until_full(folder: OutputFolder, paths: list[Path]) -> tuple[int, Failure]:
    for index, path in enumerate(paths):
        size, checksum = path.stat().st_size, file_checksum(path)
        try:
            folder.publish(path, index, checksum=checksum, bytes=size)
        except Refused as error:
            return index, error.failure
    pytest.fail("the disk never got full")


def test_copy_from_another_disk_that_does_not_fit_leaves_nothing(tmp_path: Path) -> None:
    prompts = make_prompts(tmp_path)
    with small_disk(tmp_path / "disk", "1m") as disk:
        out = disk / "out"
        with OutputFolder.open(out, run_info(prompts), prompts) as folder:
            path = tmp_path / "0.safetensors"  # the spool is on the large disk
            path.write_bytes(b"x" * 300_000)
            fill(disk, leave=100_000)
            with pytest.raises(Refused) as caught:
                folder.publish(path, 0, checksum=file_checksum(path), bytes=300_000)
            assert caught.value.failure.id == "dataset.disk-full"
            assert path.stat().st_size == 300_000
            assert not list(out.glob("*hs_*"))
            assert not list(out.glob(".*.part"))


def test_disk_without_room_for_more_files_is_refused(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "200m,nr_inodes=50") as disk:
        check_space(disk, 1000, samples=10)
        with pytest.raises(Refused) as caught:
            check_space(disk, 1000, samples=100)
        assert caught.value.failure.id == "dataset.no-space"
        assert "files" in caught.value.failure.found


def test_start_on_a_full_disk_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    prompts = make_prompts(tmp_path)
    with small_disk(tmp_path / "disk", "1m") as disk:
        for pages in range(5):
            fill(disk, leave=pages * 4096)
            with pytest.raises(Refused) as caught:
                OutputFolder.open(disk / "a" / "out", run_info(prompts), prompts)
            assert caught.value.failure.id == "dataset.disk-full"
            assert not (disk / "a" / "out").exists()


def test_real_read_only_disk_is_refused_and_reading_goes_on(tmp_path: Path) -> None:
    prompts = make_prompts(tmp_path)
    with small_disk(tmp_path / "disk", "1m") as disk:
        out = build(disk / "out", prompts)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        for target in (out, disk / "new"):
            with pytest.raises(Refused) as caught:
                OutputFolder.open(target, run_info(prompts), prompts)
            assert caught.value.failure.id == "dataset.read-only"
        assert not (disk / "new").exists()
        assert verify(out).ok
