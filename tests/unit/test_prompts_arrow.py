from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.dataset.arrow import folder_checksums, read_rows, write_prompts
from harness.dataset.prompts import PromptLimits, read_prompts
from harness.errors import UsageError
from tests.unit.datasets import LIMITS, build, make_prompts, prompt_rows

ROOT = Path(__file__).parents[2]
pa = pytest.importorskip("pyarrow", reason="the Arrow folder needs pyarrow")


def python(code: str, *args: object) -> str:
    """Run code in another process, so that what it imports stays out of this one."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def save_table(folder: Path, columns: dict[str, Any], *, files: int = 1) -> Path:
    """A dataset folder of any columns, in the form of save_to_disk."""
    table = pa.table(columns)
    folder.mkdir()
    names = [f"data-{i:05d}-of-{files:05d}.arrow" for i in range(files)]
    step = -(-table.num_rows // files)
    for i, name in enumerate(names):
        part = table.slice(i * step, step)
        with (
            pa.OSFile(str(folder / name), "wb") as sink,
            pa.ipc.new_stream(sink, table.schema) as writer,
        ):
            writer.write_table(part, max_chunksize=2)
    state = {"_data_files": [{"filename": name} for name in names]}
    (folder / "state.json").write_text(json.dumps(state))
    return folder


def refusal(folder: Path) -> Any:
    with pytest.raises(UsageError) as caught:
        read_prompts(folder, limits=LIMITS)
    return caught.value.failure


def test_prompts_written_as_arrow_read_back_equal(tmp_path: Path) -> None:
    prompts = make_prompts(tmp_path, 2501)  # more than two record batches
    write_prompts(prompts, tmp_path / "arrow")
    back = read_prompts(tmp_path / "arrow", limits=LIMITS)
    assert (back.kind, len(back)) == ("arrow", 2501)
    for index in range(len(prompts)):
        assert np.array_equal(back[index].input_ids, prompts[index].input_ids)
        mask = back[index].loss_mask
        assert mask is not None
        assert np.array_equal(mask, prompts.effective_mask(index))
    assert [row.seq_len for row in read_rows(tmp_path / "arrow")] == prompts.lengths.tolist()


def test_equal_prompts_from_jsonl_and_arrow_have_one_fingerprint(tmp_path: Path) -> None:
    rows = [{**row, "loss_mask": [1] * len(row["input_ids"])} for row in prompt_rows(6)]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = {name: [row[name] for row in rows] for name in ("id", "input_ids", "loss_mask")}
    save_table(tmp_path / "arrow", columns)
    from_lines = read_prompts(tmp_path / "p.jsonl", limits=LIMITS)
    assert read_prompts(tmp_path / "arrow", limits=LIMITS).fingerprint == from_lines.fingerprint


@pytest.mark.skipif(find_spec("datasets") is None, reason="datasets is not installed")
def test_folder_written_by_the_datasets_library_reads_in_full(tmp_path: Path) -> None:
    rows = [row for row in prompt_rows(50) if "loss_mask" in row]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    python(
        "import sys, json, datasets\n"
        "rows = json.load(open(sys.argv[1]))\n"
        "data = datasets.Dataset.from_list([{'input_ids': r['input_ids'], 'loss_mask':"
        " r['loss_mask'], 'seq_len': len(r['input_ids']), 'note': 'x'} for r in rows])\n"
        "data.select(range(0, len(data), 2)).save_to_disk(sys.argv[2], num_shards=3)\n",
        tmp_path / "rows.json",
        tmp_path / "data",
    )
    prompts = read_prompts(tmp_path / "data", limits=LIMITS)
    assert [prompt.token_list() for prompt in prompts] == [row["input_ids"] for row in rows[::2]]
    masks = [prompt.loss_mask for prompt in prompts]
    assert [None if mask is None else mask.tolist() for mask in masks] == [
        row["loss_mask"] for row in rows[::2]
    ]
    assert [p.id for p in prompts] == [str(index) for index in range(len(rows[::2]))]


@pytest.mark.parametrize(
    "kind", ["list_(pa.int32())", "large_list(pa.int64())", "list_(pa.uint16(), 3)"]
)
def test_every_list_type_of_integers_reads(tmp_path: Path, kind: str) -> None:
    column = pa.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]], type=eval(f"pa.{kind}"))
    save_table(tmp_path / "d", {"input_ids": column}, files=2)
    prompts = read_prompts(tmp_path / "d", limits=LIMITS)
    assert [p.token_list() for p in prompts] == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert prompts[0].loss_mask is None


BAD_TABLES: list[tuple[str, dict[str, Any], str, str]] = [
    ("no-input-ids", {"text": ["a"]}, "text", ""),
    ("broken-dataset", {"input_ids": ["a"]}, "string", ""),
    ("broken-dataset", {"input_ids": [[1.5]]}, "double", ""),
    ("broken-dataset", {"input_ids": [[1], None]}, "null", ""),
    ("broken-dataset", {"input_ids": [[1, None]]}, "null", ""),
    ("id-out-of-vocabulary", {"input_ids": [[1], [500]]}, "500", "row 1"),
    ("negative-id", {"input_ids": [[1], [-1]]}, "-1", "row 1"),
    ("empty-prompt", {"input_ids": [[1], []]}, "[]", "row 1"),
    ("too-long", {"input_ids": [[1], [1] * 65]}, "65", "row 1"),
    ("mask-length", {"input_ids": [[1]], "loss_mask": [[1, 1]]}, "2 values", "row 0"),
    ("mask-values", {"input_ids": [[1]], "loss_mask": [[3]]}, "3", "row 0"),
    ("seq-len", {"input_ids": [[1], [2]], "seq_len": [1, 2]}, "2", "row 1"),
    ("duplicate-id", {"input_ids": [[1], [2]], "id": ["a", "a"]}, "row 0", "row 1"),
    ("misspelt-field", {"input_id": [[1]]}, "'input_id'", ""),
    ("misspelt-field", {"input_ids": [[1]], "loss_masks": [[1]]}, "'loss_masks'", ""),
]


@pytest.mark.parametrize(("id", "columns", "found", "where"), BAD_TABLES)
def test_each_bad_table_gets_one_clear_error(
    tmp_path: Path, id: str, columns: dict[str, Any], found: str, where: str
) -> None:
    failure = refusal(save_table(tmp_path / "d", columns))
    assert failure.id == f"prompts.{id}"
    assert found in failure.found
    assert where in failure.where


def test_unknown_columns_are_noted_once_each_with_the_number_of_rows(tmp_path: Path) -> None:
    columns = {"input_ids": [[1], [2], [3]], "seq_len": [1, 1, 1], "text": ["a", "b", "c"]}
    (note,) = read_prompts(save_table(tmp_path / "d", columns), limits=LIMITS).notes
    assert (note.id, note.count) == ("prompts.unknown-field", 3)
    assert "'text'" in note.message
    assert note.examples == (f"first at {tmp_path / 'd'}, row 0",)


def test_dataset_without_rows_is_an_error(tmp_path: Path) -> None:
    empty = pa.array([], type=pa.list_(pa.int64()))
    assert refusal(save_table(tmp_path / "d", {"input_ids": empty})).id == "prompts.empty-file"


@pytest.mark.parametrize("state", ["{", "[]", "{}", '{"_data_files": [1]}'])
def test_broken_state_file_is_an_error(tmp_path: Path, state: str) -> None:
    folder = save_table(tmp_path / "d", {"input_ids": [[1]]})
    (folder / "state.json").write_text(state)
    assert refusal(folder).id == "prompts.broken-dataset"


def test_data_file_outside_the_folder_is_refused(tmp_path: Path) -> None:
    folder = save_table(tmp_path / "d", {"input_ids": [[1]]})
    next(folder.glob("*.arrow")).rename(tmp_path / "x.arrow")
    (folder / "state.json").write_text('{"_data_files": [{"filename": "../x.arrow"}]}')
    failure = refusal(folder)
    assert failure.id == "prompts.broken-dataset"
    assert "outside" in failure.found


@pytest.mark.parametrize("keep", [None, 0, 100, 250])
def test_missing_or_cut_data_file_is_an_error(tmp_path: Path, keep: int | None) -> None:
    folder = save_table(tmp_path / "d", {"input_ids": [[1, 2], [3, 4]]})
    data = next(folder.glob("*.arrow"))
    if keep is None:
        data.unlink()
    else:
        data.write_bytes(data.read_bytes()[:keep])
    assert refusal(folder).id in {"prompts.broken-dataset", "prompts.unreadable"}


def test_a_failed_write_leaves_the_old_folder(tmp_path: Path, monkeypatch: Any) -> None:
    prompts = make_prompts(tmp_path)
    before = write_prompts(prompts, tmp_path / "arrow")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("harness.dataset.arrow.atomic_write", fail)
    with pytest.raises(OSError, match="No space"):
        write_prompts(make_prompts(tmp_path, 9), tmp_path / "arrow")
    assert folder_checksums(tmp_path / "arrow") == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_reading_and_writing_never_import_torch(tmp_path: Path) -> None:
    make_prompts(tmp_path)
    out = python(
        "import sys\n"
        "from pathlib import Path\n"
        "from tests.unit.datasets import build, LIMITS\n"
        "from harness.dataset.prompts import read_prompts\n"
        "from harness.dataset.verify import verify\n"
        "folder = Path(sys.argv[1])\n"
        "prompts = read_prompts(folder / 'prompts.jsonl', limits=LIMITS)\n"
        "out = build(folder / 'out', prompts)\n"
        "read_prompts(out / 'prompts_arrow', limits=LIMITS)\n"
        "assert verify(out).ok\n"
        "print([name for name in ('torch', 'transformers', 'vllm') if name in sys.modules])\n",
        tmp_path,
    )
    assert out.strip() == "[]"


def test_cut_prompts_are_what_the_trainer_gets(tmp_path: Path) -> None:
    make_prompts(tmp_path)
    limits = PromptLimits(vocab_size=500, max_tokens=5, truncate=True)
    prompts = read_prompts(tmp_path / "prompts.jsonl", limits=limits)
    out = build(tmp_path / "out", prompts)
    rows = list(read_rows(out / "prompts_arrow"))
    assert [row.input_ids.tolist() for row in rows] == [p.token_list() for p in prompts]
    assert max(row.input_ids.size for row in rows) == 5
