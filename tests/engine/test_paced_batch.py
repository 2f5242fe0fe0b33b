"""A batch is handed over as its files come, and one that loses a file spoils no other."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.test_connector import run

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run("paced_batch.py", str(tmp_path_factory.mktemp("spool")))
    return found


def test_requests_follow_the_files_a_step_or_more_at_a_time(batches: list[dict[str, Any]]) -> None:
    first = batches[0]
    assert (first["missing"], first["error"]) == ([], "")
    assert first["waves"][0] == 16  # eight steps of two requests
    assert len(first["waves"]) > 2
    assert all(wave >= 2 for wave in first["waves"])
    assert sum(first["waves"]) == 40


def test_a_lost_file_is_named_soon_after_the_last_forward(batches: list[dict[str, Any]]) -> None:
    lost = batches[1]
    assert lost["missing"] == ["a-30"]
    assert lost["error"].startswith("engine.sample-not-written: 1 samples not written")
    assert "a-30" in lost["error"]
    assert lost["seconds"] < 30.0  # its own limit is 1 s, that of the batch 60


def test_the_batch_behind_one_that_lost_a_file_gets_all_of_its_own(
    batches: list[dict[str, Any]],
) -> None:
    assert (batches[2]["missing"], batches[2]["error"]) == ([], "")
