"""Shared memory: what is found, and what is never touched."""

from __future__ import annotations

import multiprocessing
import os
import uuid
from collections.abc import Iterator
from multiprocessing import shared_memory
from pathlib import Path

import pytest

from harness.host.leftovers import shared


@pytest.fixture
def segment() -> Iterator[shared_memory.SharedMemory]:
    found = shared_memory.SharedMemory(create=True, size=64)
    yield found
    found.close()
    found.unlink()


@pytest.fixture
def file() -> Iterator[Path]:
    """A file of one of our kinds that nobody maps."""
    path = shared.FOLDER / f"psm_test_{uuid.uuid4().hex[:8]}"
    path.write_text("x")
    yield path
    path.unlink(missing_ok=True)


def test_mapped_segment_is_found_with_its_user(segment: shared_memory.SharedMemory) -> None:
    assert segment.name in shared.used_by([os.getpid()])
    assert segment.name in shared.used_by(shared.everyone())
    assert segment.name in shared.present()
    assert segment.name not in shared.used_by([1 << 22])


def test_semaphore_is_found_in_the_process_that_made_it() -> None:
    # Its map shows the name that glibc used before.
    semaphore = multiprocessing.get_context("spawn").Semaphore()
    name = f"sem.{semaphore._semlock.name.lstrip('/')}"  # type: ignore[attr-defined]
    assert name in shared.present()
    assert name in shared.used_by([os.getpid()])


def test_file_that_nobody_uses_is_removed(file: Path) -> None:
    assert shared.remove([file.name]) == [file.name]
    assert not file.exists()
    assert shared.remove([file.name]) == []


def test_file_that_somebody_uses_is_kept(segment: shared_memory.SharedMemory) -> None:
    assert shared.remove([segment.name], in_use=shared.used_by([os.getpid()])) == []
    assert (shared.FOLDER / segment.name).exists()


@pytest.mark.parametrize("name", ["my-checkpoint", "../tmp/psm_x", "psm_x/y", "model.safetensors"])
def test_file_of_another_kind_is_never_removed(name: str) -> None:
    assert not shared._is_ours(name)
    assert shared.remove([name]) == []


def test_only_what_is_still_there_is_left(file: Path) -> None:
    shared.remember([file.name, "psm_gone"])
    assert file.name in shared.left()
    assert "psm_gone" not in shared.left()
    file.unlink()
    assert file.name not in shared.left()
