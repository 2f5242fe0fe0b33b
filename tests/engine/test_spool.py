"""The spool writer, its row checks and its result lines: torch, no engine."""

from __future__ import annotations

import json
import resource
import threading
from pathlib import Path

import pytest
from blake3 import blake3

torch = pytest.importorskip("torch", reason="needs the engine's interpreter (make gen2)")

from safetensors.torch import load_file  # noqa: E402

from harness.dataset.samples import read_sample  # noqa: E402
from harness.extraction.accept import token_hash  # noqa: E402
from harness.inside.results import Results  # noqa: E402
from harness.inside.rowchecks import (  # noqa: E402
    faults_of_flags,
    flags_wide,
    row_faults,
    row_flags,
)
from harness.inside.spool import SpoolTask, SpoolWriter  # noqa: E402
from harness.inside.words import in_words  # noqa: E402

pytestmark = pytest.mark.engine


def rows(tokens: int = 5, columns: int = 3, hidden: int = 16, dtype: object = None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    made = torch.randn(tokens, columns, hidden, generator=generator)
    return made.to(dtype or torch.float32)


def write(folder: Path, tensor: torch.Tensor, key: str = "a") -> dict[str, object]:
    writer = SpoolWriter(folder)
    ids = list(range(len(tensor)))
    writer.submit(SpoolTask(key, tensor, ids, lambda: None)).result()
    (line,) = [line for line in Results(folder).new() if line["key"] == key]
    return dict(line)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_written_sample_reads_back_bit_for_bit(tmp_path: Path, dtype: object) -> None:
    tensor = rows(dtype=dtype)
    line = write(tmp_path, tensor)
    path = tmp_path / "a.safetensors"
    read = load_file(path)
    assert torch.equal(read["hidden_states"], tensor)
    assert read["token_ids"].tolist() == [0, 1, 2, 3, 4]
    assert line["checksum"] == f"blake3:{blake3(path.read_bytes()).hexdigest()}"
    assert line["bytes"] == path.stat().st_size
    assert line["token_hash"] == token_hash([0, 1, 2, 3, 4])
    ours = read_sample(path)
    assert torch.equal(torch.from_numpy(ours.to_float32()), tensor.float())
    assert line["faults"] == []


def test_a_strided_view_is_written_in_its_own_order(tmp_path: Path) -> None:
    tensor = rows(columns=4)[:, [2, 0]]
    write(tmp_path, tensor.transpose(0, 1).contiguous().transpose(0, 1))
    assert torch.equal(load_file(tmp_path / "a.safetensors")["hidden_states"], tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("check", "spoil"),
    [
        ("finite", lambda t: t[3, 1].__setitem__(7, float("nan"))),
        ("finite", lambda t: t[3, 1].fill_(float("nan"))),
        ("finite", lambda t: t[3, 1].__setitem__(7, float("-inf"))),
        ("constant-row", lambda t: t[4, 2].zero_()),
        ("constant-row", lambda t: t[4, 2].fill_(1.5)),
        ("constant-row", lambda t: t[4, 2].zero_()[::2].neg_()),
        ("equal-columns", lambda t: t[:, 2].copy_(t[:, 0])),
    ],
)
def test_each_spoiled_row_is_named(check: str, spoil: object, dtype: torch.dtype) -> None:
    tensor = rows().to(dtype)
    assert row_faults(tensor) == []
    spoil(tensor)  # type: ignore[operator]
    (fault,) = row_faults(tensor)
    assert fault["check"] == check


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_flags_of_a_device_tell_the_same_faults(dtype: torch.dtype) -> None:
    tensor = rows(tokens=9).to(dtype)
    assert faults_of_flags(row_flags(tensor).numpy(), tensor) == []
    tensor[7, 1, 3] = float("inf")
    tensor[8, 1] = 0
    tensor[8, 1, ::2] = -0.0
    tensor[4, 1] = 1.5
    tensor[:, 2] = tensor[:, 0]
    flags = row_flags(tensor)
    assert flags.shape == (9, flags_wide(3))
    assert faults_of_flags(flags.numpy(), tensor) == row_faults(tensor)
    assert [(f["check"], f["column"], f["count"], f["first"]) for f in row_faults(tensor)] == [
        ("finite", 1, 1, 7),
        ("constant-row", 1, 2, 4),
        ("equal-columns", 2, 9, 0),
    ]


@pytest.mark.parametrize("check", ["device", "host"])
def test_a_broken_row_is_not_constant_and_one_equal_row_makes_no_equal_columns(check: str) -> None:
    tensor = rows(tokens=4)
    tensor[1, 0] = float("nan")
    tensor[2, 2] = tensor[2, 1]
    flags = row_flags(tensor).numpy()
    found = faults_of_flags(flags, tensor) if check == "device" else row_faults(tensor)
    assert [(f["check"], f["column"], f["first"]) for f in found] == [("finite", 0, 1)]


def test_columns_of_the_same_values_in_another_order_are_not_equal() -> None:
    tensor = rows(tokens=3)
    tensor[:, 1] = tensor[:, 0].roll(8, -1)  # the sums of their bits are equal
    flags = row_flags(tensor).numpy()
    assert flags[:, 6:].any()
    assert faults_of_flags(flags, tensor) == row_faults(tensor) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("hidden", [7, 8, 12])
@pytest.mark.parametrize("first", [0, 1])
def test_rows_of_any_width_and_place_are_checked_by_their_own_bits(
    dtype: torch.dtype, hidden: int, first: int
) -> None:
    torch.manual_seed(2)
    tensor = torch.randn(5, 4, hidden).to(dtype)[:, first:]
    tensor[:, 2] = tensor[:, 0]
    flags = row_flags(tensor).numpy()
    assert faults_of_flags(flags, tensor) == row_faults(tensor)
    assert [(f["check"], f["column"], f["first"]) for f in row_faults(tensor)] == [
        ("equal-columns", 2, 0)
    ]


def test_only_rows_of_whole_words_are_seen_as_words() -> None:
    whole = torch.zeros(3, 2, 16, dtype=torch.bfloat16)
    assert in_words(whole, torch.complex128).shape == (3, 2, 2)
    assert in_words(whole[:, 1:], torch.int64).shape == (3, 1, 4)
    for odd in (whole[..., :7], whole[..., 1:9], whole[..., ::2], torch.zeros(3, 2, 9)[..., :8]):
        assert in_words(odd, torch.complex128) is odd


def test_a_sample_of_many_parts_is_whole(tmp_path: Path) -> None:
    torch.manual_seed(1)
    tensor = torch.randn(700, 2, 1024)
    write(tmp_path, tensor)
    assert torch.equal(load_file(tmp_path / "a.safetensors")["hidden_states"], tensor)


def test_opposite_values_are_no_constant_row() -> None:
    tensor = rows()
    tensor[1, 1] = 1.5
    tensor[1, 1, 1::2] = -1.5
    assert row_faults(tensor) == []


def test_a_sample_of_one_row_has_no_false_fault() -> None:
    assert row_faults(rows(tokens=1)) == []


@pytest.mark.parametrize("columns", [1, 3])
def test_a_sample_of_no_rows_has_no_fault(columns: int) -> None:
    tensor = rows(tokens=0, columns=columns)
    assert row_faults(tensor) == faults_of_flags(row_flags(tensor).numpy(), tensor) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_of_one_value_is_not_told_as_constant_and_a_row_of_two_is(dtype: torch.dtype) -> None:
    one = rows(tokens=4, hidden=1).to(dtype)
    one[2, 1] = float("inf")
    two = rows(tokens=4, hidden=2).to(dtype)
    two[3, 1] = 1.5
    for tensor, fault in ((one, ("finite", 1, 2)), (two, ("constant-row", 1, 3))):
        found = row_faults(tensor)
        assert faults_of_flags(row_flags(tensor).numpy(), tensor) == found
        assert [(f["check"], f["column"], f["first"]) for f in found] == [fault]


def test_a_full_disk_leaves_no_file_and_says_so(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    import signal

    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, hard))
    try:
        writer = SpoolWriter(tmp_path)
        writer.submit(SpoolTask("a", rows(), [1] * 5, lambda: None)).result()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    (line,) = Results(tmp_path).new()
    assert line["error"] == "os"
    assert line["errno"] == 27  # EFBIG, as RLIMIT_FSIZE reports it
    assert [path.name for path in tmp_path.iterdir()] == ["results.jsonl"]


def test_writers_wait_for_room_and_lose_nothing(tmp_path: Path) -> None:
    tensor = rows(tokens=64)
    size = tensor.numel() * 4
    writer = SpoolWriter(tmp_path, threads=2, max_pending_bytes=3 * size)
    gate = threading.Event()
    threading.Timer(0.2, gate.set).start()
    futures = [
        writer.submit(SpoolTask(f"k{n}", tensor, [1] * 64, lambda: gate.wait() and None))
        for n in range(12)
    ]
    for future in futures:
        future.result()
    assert {line["key"] for line in Results(tmp_path).new()} == {f"k{n}" for n in range(12)}


def test_a_failing_device_copy_is_reported_not_lost(tmp_path: Path) -> None:
    def wait() -> None:
        raise RuntimeError("device lost")

    SpoolWriter(tmp_path).submit(SpoolTask("a", rows(), [1] * 5, wait)).result()
    (line,) = Results(tmp_path).new()
    assert line["error"] == "internal"
    assert "device lost" in line["message"]


def test_a_torn_result_line_waits_for_its_rest(tmp_path: Path) -> None:
    results = Results(tmp_path)
    whole = json.dumps({"key": "a"}) + "\n"
    path = tmp_path / "results.jsonl"
    path.write_text(whole + whole[:4])
    assert [line["key"] for line in results.new()] == ["a"]
    path.write_text(whole + whole)
    assert [line["key"] for line in results.new()] == ["a"]


def test_collect_names_what_never_came(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match=r"1 samples not written, such as \['b'\]"):
        list(Results(tmp_path).collect(["b"], deadline_s=0.0))
