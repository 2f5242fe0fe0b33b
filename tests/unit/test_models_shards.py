"""Fingerprints and the check of shards against their index."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import models
from harness.errors import CheckFailed, UsageError
from tests.unit.checkpoints import TINY, shards

INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards") / "model"
    return models.make(TINY, folder, architecture="plain", layers=2)


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copy"))


def _edit_index(folder: Path, edit: Callable[[dict[str, str]], object]) -> None:
    content = json.loads((folder / INDEX).read_text())
    edit(content["weight_map"])
    (folder / INDEX).write_text(json.dumps(content))


def test_fingerprint_names_content_and_not_place(made: Path, folder: Path) -> None:
    name = models.fingerprint(folder)
    assert name == models.fingerprint(made)
    assert name.startswith("blake3:")
    assert len(name) == len("blake3:") + 64


def test_fingerprint_never_reads_a_payload(folder: Path) -> None:
    before = models.fingerprint(folder)
    shard = shards(folder)[0]
    with shard.open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 1]))
    assert models.fingerprint(folder) == before


@pytest.mark.parametrize("change", ["config", "index", "header", "size", "name"])
def test_fingerprint_sees(change: str, folder: Path) -> None:
    before = models.fingerprint(folder)
    shard = shards(folder)[0]
    if change == "config":
        (folder / "config.json").write_text((folder / "config.json").read_text() + " ")
    elif change == "index":
        (folder / INDEX).write_text((folder / INDEX).read_text() + " ")
    elif change == "header":
        raw = shard.read_bytes()
        shard.write_bytes(raw.replace(b'"dtype":"F32"', b'"dtype":"I32"', 1))
    elif change == "size":
        shard.write_bytes(shard.read_bytes() + b"\0")
    else:
        renamed = shard.with_name("weights-1.safetensors")
        shard.rename(renamed)
        _edit_index(
            folder, lambda m: m.update({k: renamed.name for k, v in m.items() if v == shard.name})
        )
        # The index has changed too; compare with a copy whose file alone is renamed.
        (folder / INDEX).unlink()
        without_index = models.fingerprint(folder)
        renamed.rename(shard)
        assert models.fingerprint(folder) != without_index
        return
    assert models.fingerprint(folder) != before


def test_fields_of_a_fingerprint_cannot_run_into_each_other(tmp_path: Path) -> None:
    # A space moves from the end of one file to the beginning of the next.
    names = set()
    for config, index in [("{} ", '{"weight_map": {}}'), ("{}", ' {"weight_map": {}}')]:
        (tmp_path / "config.json").write_text(config)
        (tmp_path / INDEX).write_text(index)
        names.add(models.fingerprint(tmp_path))
    assert len(names) == 2


def test_folder_without_weights_is_named_by_its_config(tmp_path: Path) -> None:
    three = models.make("kimi-k2.5-slice", tmp_path / "three", layers=3)
    four = models.make("kimi-k2.5-slice", tmp_path / "four", layers=4)
    assert models.fingerprint(three) != models.fingerprint(four)


def test_fingerprint_of_a_missing_folder_is_the_readers_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"models\.missing-folder"):
        models.fingerprint(tmp_path / "nowhere")


def test_sound_checkpoint_is_told_in_a_line(folder: Path) -> None:
    assert models.check_shards(folder).startswith("2 shards, 53 tensors, ")


def test_single_file_without_index_is_sound(folder: Path) -> None:
    (folder / INDEX).unlink()
    shards(folder)[1].unlink()
    assert models.check_shards(folder).startswith("1 shard, ")


@pytest.mark.parametrize("look", [models.check_shards, models.fingerprint])
def test_missing_shard_is_named(look: Callable[[Path], str], folder: Path) -> None:
    shards(folder)[1].unlink()
    with pytest.raises(CheckFailed) as caught:
        look(folder)
    assert caught.value.failure.id == "models.missing-shard"
    assert "model-00002-of-000002.safetensors" in caught.value.failure.found


@pytest.mark.parametrize("look", [models.check_shards, models.fingerprint])
@pytest.mark.parametrize("raw", [b"", b"\x10\0\0\0\0\0\0\0{}", b"version https://git-lfs"])
def test_broken_shard_is_named(raw: bytes, look: Callable[[Path], str], folder: Path) -> None:
    shards(folder)[0].write_bytes(raw)
    with pytest.raises(CheckFailed) as caught:
        look(folder)
    assert caught.value.failure.id == "models.broken-shard"
    assert "model-00001" in caught.value.failure.where


@pytest.mark.parametrize("change", [-1, 1, -4096])
def test_shard_of_another_length_than_its_header_says(change: int, folder: Path) -> None:
    raw = shards(folder)[1].read_bytes()
    shards(folder)[1].write_bytes(raw[:change] if change < 0 else raw + b"\0" * change)
    with pytest.raises(CheckFailed) as caught:
        models.check_shards(folder)
    assert caught.value.failure.id == "models.cut-shard"


def test_header_whose_extents_contradict_its_shapes(folder: Path) -> None:
    shard = shards(folder)[0]
    shard.write_bytes(shard.read_bytes().replace(b'"shape":[128]', b'"shape":[127]', 1))
    with pytest.raises(CheckFailed, match="does not fit its shape"):
        models.check_shards(folder)


@pytest.mark.parametrize("raw", ["{", "[]", '{"metadata": {}}', '{"weight_map": {"a": 1}}'])
def test_broken_index_is_named(raw: str, folder: Path) -> None:
    (folder / INDEX).write_text(raw)
    for look in (models.check_shards, models.fingerprint):
        with pytest.raises(CheckFailed) as caught:
            look(folder)
        assert caught.value.failure.id == "models.broken-index"


def test_index_that_names_a_tensor_in_the_wrong_shard(folder: Path) -> None:
    name = "model.norm.weight"
    _edit_index(folder, lambda m: m.update({name: "model-00001-of-000002.safetensors"}))
    with pytest.raises(CheckFailed) as caught:
        models.check_shards(folder)
    assert caught.value.failure.id == "models.index-differs"
    assert name in caught.value.failure.expected
    assert "model-00002" in caught.value.failure.found


def test_index_that_names_a_tensor_that_no_shard_has(folder: Path) -> None:
    _edit_index(folder, lambda m: m.update({"ghost": "model-00001-of-000002.safetensors"}))
    with pytest.raises(CheckFailed, match="in no shard"):
        models.check_shards(folder)


def test_index_that_leaves_a_tensor_out(folder: Path) -> None:
    _edit_index(folder, lambda m: m.pop("lm_head.weight"))
    with pytest.raises(CheckFailed, match=r"expected: lm_head\.weight in the index"):
        models.check_shards(folder)


def test_folder_without_weights_fails_the_check(tmp_path: Path) -> None:
    folder = models.make("kimi-k2.5-slice", tmp_path / "slice")
    assert "made at load" in models.check_shards(folder)
    before = models.fingerprint(folder)
    (folder / "harness-weights.json").unlink()
    assert models.fingerprint(folder) != before
    with pytest.raises(CheckFailed, match=r"models\.no-weights"):
        models.check_shards(folder)
