"""Bookkeeping of our connector, without an engine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine
SCRIPTS = Path(__file__).parent / "_scripts"


def run(script: str, *arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / script), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_only_saved_requests_are_reported_as_sent_and_once() -> None:
    first, second, *_ = run("connector_reports.py")
    assert first == [["saved"], None]  # neither a request without capture nor an aborted one
    assert second == [None, None]


def test_a_whole_request_is_sent_with_its_own_tokens_and_a_cut_one_is_not() -> None:
    *_, found, held = run("connector_reports.py")
    assert held == []  # on a rank that writes nothing and, from 0.32 on, reports nothing
    assert found["whole"][:3] == [True, "k", [163_000, 5, 7]]
    assert found["cut"] == [False]


def test_no_tensor_is_sent_to_the_ranks() -> None:
    *_, found, _ = run("connector_reports.py")
    assert found["whole"][3] is False  # 0.1 ms a request, while the devices wait


@pytest.mark.parametrize(
    ("most", "reads", "waited"),
    # Requests that want other columns are read by themselves, and none is cut. Of the second step
    # nobody said when it began, and the fourth began before the third had ended: there everything
    # is waited for, never a step before.
    [
        ((), [1, 3, 4, 5], [1, None, None, 2, None]),
        (("8",), [2, 4, 7, 8], [1, 1, None, None, 2, 2, 2, None]),
    ],
    ids=["a step at once", "8 rows at once"],
)
def test_requests_of_a_step_share_a_read_and_each_file_has_its_own_slots(
    most: tuple[str, ...], reads: list[int], waited: list[int | None], tmp_path: Path
) -> None:
    found, seen, since = run("connector_batches.py", str(tmp_path), *most)
    assert len(found) == 13
    assert all(all(one.values()) for one in found.values()), found
    assert seen == reads
    assert since == waited


@pytest.fixture(scope="module")
def written() -> Any:
    return run("cache_write.py")


@pytest.mark.parametrize("kind", ["bfloat16", "float32"])
def test_rows_are_written_as_words_bit_for_bit(written: Any, kind: str) -> None:
    taken, same, there, wide = written[kind]
    assert taken
    assert wide
    assert there
    assert same


@pytest.mark.parametrize("kind", ["odd width", "one block", "strict", "fixed", "sealed"])
def test_a_release_or_width_that_takes_no_words_keeps_its_own_write(
    written: Any, kind: str
) -> None:
    taken, same, there, wide = written[kind]
    assert not taken
    assert not wide
    assert there
    assert same


def test_rows_that_start_within_a_word_are_written_by_the_own_write(written: Any) -> None:
    assert written["odd rows"] == [True, True, True, False]


def test_a_write_that_does_more_than_move_bits_is_left_alone(written: Any) -> None:
    assert not written["scaled"]
    assert not written["another layer"]
    assert not written["no layer"]


def test_rows_and_cache_of_a_wrong_type_are_refused_as_before(written: Any) -> None:
    assert written["another type"]
