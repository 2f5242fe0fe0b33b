"""The count that holds what the engine tests of every day cost."""

from __future__ import annotations

from pathlib import Path

from tests.engine._starts import LOADS, logs_of_starts


def test_start_counts_once_however_many_workers_it_has_and_names_point_to_it(
    tmp_path: Path,
) -> None:
    two_ranks = tmp_path / "engine0" / "engine.log"
    two_ranks.parent.mkdir()
    two_ranks.write_bytes(b"(Worker_TP0) " + LOADS + b" a\n(Worker_TP1) " + LOADS + b" a\n")
    (tmp_path / "enginecurrent").symlink_to(two_ranks.parent)
    (tmp_path / "again.log").symlink_to(two_ranks)
    (tmp_path / "reference.log").write_text("Loading weights: 100%\n")
    plain = tmp_path / "plain.log"
    plain.write_bytes(b"\xff" + LOADS)
    assert logs_of_starts(tmp_path) == [two_ranks, plain]
