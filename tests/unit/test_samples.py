from __future__ import annotations

import contextlib
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from harness.dataset.samples import file_checksum, read_sample
from harness.errors import CheckFailed, ExitCode
from tests.unit.datasets import encode_sample, make_hidden

IDS = [7, 8, 9, 10, 11]


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def refusal(path: Path) -> Any:
    with pytest.raises(CheckFailed) as caught:
        read_sample(path)
    assert caught.value.exit_code is ExitCode.CHECK_FAILED
    assert caught.value.failure.where == str(path)
    return caught.value.failure


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_file_of_the_safetensors_library_reads_exactly(tmp_path: Path, dtype: str) -> None:
    hidden = make_hidden(5, 1, dtype)
    data = save({"hidden_states": hidden, "token_ids": np.array(IDS)}, metadata={"a": "b"})
    sample = read_sample(write(tmp_path / "s", data), checksum=True)
    assert sample.dtype == dtype
    assert sample.hidden.dtype.name == dtype
    assert np.array_equal(sample.hidden, hidden)
    assert sample.token_ids.tolist() == IDS
    assert sample.bytes == len(data)
    assert sample.checksum == f"blake3:{blake3(data).hexdigest()}"
    assert np.array_equal(sample.to_float32(), hidden.astype(np.float32))


def test_bfloat16_keeps_every_bit_and_widens_exactly(tmp_path: Path) -> None:
    every = np.arange(2**16, dtype=np.uint16).reshape(64, 4, 256)
    sample = read_sample(write(tmp_path / "s", encode_sample(every, list(range(64)))))
    assert sample.dtype == "bfloat16"
    assert np.array_equal(sample.hidden, every)
    wide = sample.to_float32().ravel()
    bits = wide.view(np.uint32)
    assert np.array_equal(bits >> 16, every.ravel())
    assert not (bits & 0xFFFF).any()
    # Against values known from the format: 1.0, -2.0, infinity, the smallest normal number.
    for pattern, value in ((0x3F80, 1.0), (0xC000, -2.0), (0x7F80, np.inf), (0x0080, 2.0**-126)):
        assert wide[pattern] == value


def test_checksum_is_only_computed_when_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "s", encode_sample(make_hidden(5, 1), IDS))
    assert read_sample(path).checksum is None


def test_header_that_is_not_padded_still_reads(tmp_path: Path) -> None:
    data = encode_sample(make_hidden(5, 1), IDS)
    (length,) = struct.unpack_from("<Q", data)
    for pad in range(1, 8):
        header = data[8 : 8 + length].rstrip() + b" " * pad
        odd = struct.pack("<Q", len(header)) + header + data[8 + length :]
        sample = read_sample(write(tmp_path / "s", odd))
        assert np.array_equal(sample.hidden, make_hidden(5, 1))
        assert sample.hidden.flags.aligned
        assert sample.token_ids.tolist() == IDS


def test_sample_without_rows_reads_as_empty(tmp_path: Path) -> None:
    sample = read_sample(write(tmp_path / "s", encode_sample(make_hidden(0, 1), [])))
    assert sample.hidden.shape[0] == sample.token_ids.size == 0


def test_missing_and_unreadable_files_are_told_apart(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none").id == "sample.missing"
    assert refusal(tmp_path).id == "sample.unreadable"


def test_every_truncation_is_caught(tmp_path: Path) -> None:
    data = encode_sample(make_hidden(2, 1), IDS[:2])
    for size in range(len(data)):
        assert refusal(write(tmp_path / "s", data[:size])).id == "sample.broken"


def test_trailing_bytes_are_caught(tmp_path: Path) -> None:
    data = encode_sample(make_hidden(2, 1), IDS[:2])
    assert refusal(write(tmp_path / "s", data + b"\0")).id == "sample.broken"


def lying(change: dict[str, Any], name: str = "hidden_states") -> bytes:
    """A file whose header has one field changed."""
    data = encode_sample(make_hidden(5, 1), IDS)
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    header[name] = {**header.get(name, {}), **change}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


LIES = [
    lying({"shape": [6, 3, 16]}),
    lying({"shape": [5, 3, 15]}),
    lying({"shape": [-5, -3, 16]}),
    lying({"shape": [5, 48]}),
    lying({"shape": [5, 3, 16, 1]}),
    lying({"shape": "5,3,16"}),
    lying({"shape": [5, 3, 16.0]}),
    lying({"shape": [True, 15, 16]}),
    lying({"shape": [2**40, 2**40, 2**40]}),
    lying({"dtype": "F16"}),
    lying({"dtype": "F64"}),
    lying({"dtype": ["F32"]}),
    lying({"dtype": "I64", "shape": [5, 3, 8]}),
    lying({"data_offsets": [8, 968]}),
    lying({"data_offsets": [0, 952]}),
    lying({"data_offsets": [0]}),
    lying({"data_offsets": ["0", "960"]}),
    lying({"data_offsets": [0, 10**30]}),
    lying({"extra": 1}),
    lying({"shape": [4]}, "token_ids"),
    lying({"shape": [5, 1]}, "token_ids"),
    lying({"dtype": "F32", "shape": [10]}, "token_ids"),
    lying({"data_offsets": [0, 40]}, "token_ids"),
    lying({}, "other"),
    struct.pack("<Q", 2**63) + b"{}",
    struct.pack("<Q", 2) + b"[]",
    struct.pack("<Q", 2) + b"{}",
    struct.pack("<Q", 4) + b'{"a"',
    struct.pack("<Q", 4) + b"\xff\xfe{}",
    struct.pack("<Q", 100_000) + b"[" * 100_000,
    b"",
]


@pytest.mark.parametrize("data", LIES, ids=range(len(LIES)))
def test_every_lying_header_is_caught_without_reading_past_the_end(
    tmp_path: Path, data: bytes
) -> None:
    failure = refusal(write(tmp_path / "s", data))
    assert failure.id == "sample.broken"
    assert len(str(failure)) < 1000


def test_no_header_makes_the_reader_allocate_more_than_the_file(tmp_path: Path) -> None:
    header = b'{"hidden_states":' + b" " * 2_000_000 + b"{}}"
    assert (
        "length field"
        in refusal(write(tmp_path / "s", struct.pack("<Q", len(header)) + header)).found
    )


@settings(deadline=None)
@given(data=st.binary(max_size=200))
def test_any_bytes_read_as_a_sample_or_as_one_error(tmp_path_factory: Any, data: bytes) -> None:
    path = write(tmp_path_factory.mktemp("s") / "s", data)
    with pytest.raises(CheckFailed):
        read_sample(path)


GOOD = encode_sample(make_hidden(3, 1), IDS[:3])


@settings(deadline=None)
@given(place=st.integers(0, 8 * 300 - 1))
def test_a_flipped_header_bit_never_escapes_as_another_error(
    tmp_path_factory: Any, place: int
) -> None:
    data = bytearray(GOOD)
    data[place // 8] ^= 1 << place % 8
    path = write(tmp_path_factory.mktemp("s") / "s", bytes(data))
    with contextlib.suppress(CheckFailed):
        sample = read_sample(path, checksum=True)
        assert sample.checksum != f"blake3:{blake3(GOOD).hexdigest()}"


@pytest.mark.parametrize("size", [0, 1, 1000, (16 << 20) - 1, 16 << 20, (16 << 20) + 1])
def test_streamed_checksum_equals_the_checksum_of_the_bytes(tmp_path: Path, size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    path = write(tmp_path / "f", data)
    assert file_checksum(path) == f"blake3:{blake3(data).hexdigest()}"


def test_a_pipe_in_place_of_a_sample_is_refused_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "hs_0.safetensors"
    os.mkfifo(pipe)
    with pytest.raises(CheckFailed):
        read_sample(pipe)
