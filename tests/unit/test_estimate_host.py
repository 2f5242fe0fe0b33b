"""Cards by name, sizes as written, time of a load."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.errors import Refused, UsageError
from harness.estimate import CARDS, card, gib, load_seconds, measure_read, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("96GB", 96 * 10**9), ("94.5 GiB", 101_468_602_368), ("1024", 1024), ("2kib", 2048)],
)
def test_sizes_are_read_as_they_are_written(text: str, size: int) -> None:
    assert parse_size(text, "--x") == size


@pytest.mark.parametrize("text", ["", "GB", "0", "-1GB", "96XB", "nine", "1e9"])
def test_no_size_is_refused_by_its_option(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_size(text, "--read-rate")
    assert caught.value.failure.id == "estimate.bad-size"
    assert caught.value.failure.where == "--read-rate"


@pytest.mark.parametrize(
    ("text", "name"),
    [("96GB", "rtx-pro-6000"), ("141GB", "h200"), ("80 gb", "h100"), ("180GB", "b200")]
    + [(name.upper(), name) for name in CARDS],
)
def test_a_card_goes_by_its_name_and_by_the_size_it_is_sold_by(text: str, name: str) -> None:
    assert card(text) is CARDS[name]


def test_any_other_size_is_exactly_that() -> None:
    assert card("96GiB").memory == 96 * 2**30
    assert card("24GB").memory == 24 * 10**9


def test_a_card_divides_less_than_the_size_it_is_sold_by_in_gib() -> None:
    for known in CARDS.values():
        assert known.nominal is not None
        assert known.memory < known.nominal * 2**30
        assert known.source


def test_bytes_are_shown_in_a_unit_that_says_something() -> None:
    assert gib(0) == "0.00 GiB"
    assert gib(2**20) == "1.00 MiB"
    assert gib(-3 * 2**30) == "-3.00 GiB"


def test_a_load_takes_its_bytes_over_its_rate_and_a_start() -> None:
    assert load_seconds(600 * 10**9, 2e9) == 60 + 300
    assert load_seconds(0, 1.0, start=5) == 5
    with pytest.raises(ValueError, match="over 0"):
        load_seconds(1, 0)


class Ticks:
    def __init__(self, *times: float) -> None:
        self.times = list(times)

    def __call__(self) -> float:
        return self.times.pop(0)


def test_a_read_rate_comes_from_real_bytes_of_the_shards(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"x" * 999)
    for name in ("b.safetensors", "a.safetensors"):
        (tmp_path / name).write_bytes(b"y" * 3_000_000)
    seen = measure_read(tmp_path, least=1, clock=Ticks(10.0, 12.0))
    assert (seen.bytes, seen.files, seen.rate) == (6_000_000, 2, 3_000_000)


def test_a_measurement_stops_when_it_has_read_enough(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_bytes(b"y" * 1000)
    seen = measure_read(tmp_path, most=1500, least=1500, clock=Ticks(0.0, 1.0))
    assert (seen.bytes, seen.files) == (1500, 2)


@pytest.mark.parametrize("one_file", [True, False])
def test_too_few_bytes_are_no_measurement(tmp_path: Path, one_file: bool) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    with pytest.raises(Refused, match=r"estimate\.too-little-to-read") as refused:
        measure_read(tmp_path / "a" if one_file else tmp_path)
    assert "16 MiB" in refused.value.failure.expected
    assert refused.value.failure.found == "3 bytes in 1 file"
    with (tmp_path / "b").open("wb") as file:
        file.truncate(16 << 20)
    assert measure_read(tmp_path).bytes == (16 << 20) + 3


@pytest.mark.parametrize("place", ["/proc", "/proc/version"])
def test_files_of_the_system_are_on_no_disk(place: str) -> None:
    with pytest.raises(Refused, match=r"estimate\.nothing-to-read") as refused:
        measure_read(Path(place), least=1)
    assert "belongs to the system" in refused.value.failure.found


def test_a_pipe_that_is_named_like_a_shard_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.safetensors")
    (tmp_path / "b").write_bytes(b"abc")
    assert measure_read(tmp_path, least=1).bytes == 3


@pytest.mark.parametrize("make", ["empty", "missing", "hollow"])
def test_a_folder_without_bytes_cannot_be_measured(tmp_path: Path, make: str) -> None:
    folder = tmp_path / "folder"
    if make != "missing":
        folder.mkdir()
    if make == "hollow":
        (folder / "a").touch()
    with pytest.raises(Refused, match=r"estimate\.nothing-to-read"):
        measure_read(folder)
