"""The figures of timed passes: what is paired, what is left out, and how files are consumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.capture.protocol import BatchTimes, Captured, Request
from tests.timing import Pass, Timed, capture_pass, time_beside, time_capture, time_plain

PROMPTS = [[1, 2, 3], [4, 5]]


class Session:
    """Writes a file a request and hands it over; plain prefill takes what it is told to."""

    def __init__(self, folder: Path, *plain: float) -> None:
        self.folder, self.plain_seconds = folder, list(plain)
        self.calls: list[str] = []

    def run(self, requests: list[Request], on_sample: Any) -> BatchTimes:
        self.calls.append("run")
        for number, request in enumerate(requests):
            path = self.folder / request.key
            path.touch()
            size = 100 * len(request.input_ids)
            checksum = "" if number else "blake3:00"
            on_sample(
                Captured(request.key, path, 2, 4, 8, "bfloat16", size, checksum, "", "", (), None)
            )
        return BatchTimes(generate=0.5, files=0.6)

    def plain(self, prompts: Any, repeats: int) -> dict[str, Any]:
        self.calls.append(f"plain {repeats}")
        return {"seconds": [self.plain_seconds.pop(0) for _ in range(repeats)]}


def passes(*files: float) -> tuple[Pass, ...]:
    return tuple(
        Pass(seconds, 0.8 * seconds, 1.1 * seconds, 0.1, 57_344 * 1000, 0) for seconds in files
    )


def test_pass_consumes_every_file_and_counts_what_has_no_checksum(tmp_path: Path) -> None:
    found = capture_pass(Session(tmp_path), PROMPTS)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
    assert (found.bytes, found.unhashed) == (500, 1)
    assert found.files == 0.6  # as the engine says: what the reader adds is told apart
    assert 0 < found.first <= found.taken


def test_each_pass_has_the_plain_one_behind_it_for_a_pair(tmp_path: Path) -> None:
    session = Session(tmp_path, 1.0, 2.0, 3.0)
    found = time_beside(session, PROMPTS, 3)  # type: ignore[arg-type]
    assert session.calls == ["run", "plain 1"] * 3
    assert (found.tokens, found.total, found.plain, found.beside) == (
        5,
        15,
        (5.0, 2.5, 5 / 3),
        True,
    )


def test_plain_pass_of_a_part_is_told_by_its_own_tokens(tmp_path: Path) -> None:
    found = time_beside(Session(tmp_path, 1.0, 2.0), PROMPTS, 2, part=1)  # type: ignore[arg-type]
    assert (found.tokens, found.plain) == (5, (3.0, 1.5))


def test_pairs_take_the_machines_mood_out_of_the_ratio() -> None:
    plain = tuple(1000 / seconds for seconds in (0.9, 1.8, 3.6))
    paired = Timed(1000, passes(1.0, 2.0, 4.0), plain, beside=True)
    assert paired.rates()["ratio"] == pytest.approx([0.9] * 3)
    apart = Timed(1000, passes(1.0, 2.0, 4.0), plain, beside=False)
    assert apart.rates()["ratio"] == pytest.approx([1.8, 0.9, 0.45])


def test_engine_without_capture_has_a_plain_speed_only(tmp_path: Path) -> None:
    found = time_plain(Session(tmp_path, 2.0, 4.0), PROMPTS, 2)  # type: ignore[arg-type]
    assert found.rates() == {"plain_tok_per_s": [2.5, 1.25]}
    assert found.told()["plain_tok_per_s_range"] == [1, 2]


def test_plain_speed_of_another_engine_is_not_recorded_as_ones_own(tmp_path: Path) -> None:
    found = time_capture(Session(tmp_path), PROMPTS, 2, [1.0])  # type: ignore[arg-type]
    assert list(found.rates()) == ["files_tok_per_s", "ratio"]
    without = time_capture(Session(tmp_path), PROMPTS, 2, [])  # type: ignore[arg-type]
    assert list(without.rates()) == ["files_tok_per_s"]


def test_told_figures_are_medians_with_their_range_and_the_tail() -> None:
    plain = tuple(1000 / seconds for seconds in (0.9, 1.8, 1.9))
    told = Timed(1000, passes(1.0, 2.0, 2.0), plain, beside=True).told()
    assert (told["tokens"], told["repeats"], told["bytes_per_token"]) == (1000, 3, 57_344)
    assert (told["ratio"], told["ratio_range"]) == (0.9, [0.9, 0.95])
    assert told["generate_ratio"] == pytest.approx(0.9 / 0.8)
    assert told["tail_s"] == 0.4
    assert told["taken_ratio"] == pytest.approx(0.9 / 1.1, abs=1e-4)
    assert (told["files_tok_per_s"], told["files_tok_per_s_range"]) == (500, [500, 1000])
