"""Prompts as a Hugging Face dataset folder: read one, and write the one the trainer wants.

The folder is the form of ``Dataset.save_to_disk``: Arrow stream files, ``state.json`` that lists
them, ``dataset_info.json`` with the column types. Both directions use pyarrow alone: opening a
dataset whose rows are formatted for torch with the ``datasets`` library imports torch, which the
harness' own process never does.

speculators 0.9's ``ArrowDataset`` takes row i of this folder with ``hs_<i>.safetensors``, reads
``seq_len`` for its batches, and wants rows as torch tensors (``_format_type`` in ``state.json``).
Train on it with ``--data-path OUT/prompts_arrow --hidden-states-path OUT``.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from harness.dataset._fields import COLUMN, refuse_misspelt
from harness.dataset._files import atomic_write, file_checksum
from harness.dataset._prompt_builder import PromptBuilder, bad
from harness.dataset.prompt_set import PromptSet

ARROW_FOLDER = "prompts_arrow"
_DATA = "data-00000-of-00001.arrow"
_ROWS_A_BATCH = 1000
# "Sequence" is read by every release of datasets; its newer name "List" only from 4.0 on.
_FEATURES: dict[str, Any] = {
    "input_ids": {"feature": {"dtype": "int64", "_type": "Value"}, "_type": "Sequence"},
    "loss_mask": {"feature": {"dtype": "int64", "_type": "Value"}, "_type": "Sequence"},
    "seq_len": {"dtype": "int64", "_type": "Value"},
}


@dataclass(frozen=True, eq=False)
class ArrowRow:
    """One row of a dataset folder, unchecked.

    Attributes:
        index: Row number over all files.
        name: The column ``id``, where there is one.
        input_ids: Integers ``[tokens]``.
        loss_mask: Integers or booleans, or None where there is no such column.
        seq_len: The column ``seq_len``, where there is one.
        columns: Names of all columns.
    """

    index: int
    name: Any
    input_ids: npt.NDArray[Any]
    loss_mask: npt.NDArray[Any] | None
    seq_len: int | None
    columns: tuple[str, ...]


def add_rows(path: Path, builder: PromptBuilder) -> None:
    """Read the rows of a dataset folder into the builder.

    Raises:
        UsageError: The folder or one of its rows is bad; the error names the row.
    """
    for row in read_rows(path):
        where = f"{path}, row {row.index}"
        builder.fields.see(where, row.columns, COLUMN)
        if row.seq_len is not None and row.seq_len != row.input_ids.size:
            bad(
                "seq-len",
                f"seq_len equal to the {row.input_ids.size} input ids",
                str(row.seq_len),
                where,
                "prepare the dataset again",
            )
        builder.add(where, row.name, row.input_ids, row.loss_mask)


def read_rows(path: Path) -> Iterator[ArrowRow]:
    """Yield the rows of a dataset folder in order, a batch in memory at a time.

    Raises:
        UsageError: ``prompts.broken-dataset``, ``prompts.no-input-ids``,
            ``prompts.misspelt-field``, ``prompts.unreadable``.
    """
    import pyarrow as pa

    index = 0
    try:
        for file in _data_files(path):
            with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as reader:
                for batch in reader:
                    for row in _batch_rows(path, batch):
                        yield ArrowRow(index, *row)
                        index += 1
    except FileNotFoundError as error:
        _broken(path, f"no {error.filename or error}")
    except OSError as error:
        bad("unreadable", "a readable dataset", str(error), str(path), "check the disk")
    except pa.ArrowException as error:
        _broken(path, f"{type(error).__name__}: {error}")


def write_prompts(prompts: PromptSet, folder: Path) -> dict[str, str]:
    """Write the prompts as a dataset folder; a prompt without a mask gets ones.

    The folder appears whole or not at all.

    Args:
        prompts: The prompts; row i is prompt i, after any cut.
        folder: The folder to make; an old one is replaced.

    Returns:
        File name to checksum of everything in it.

    Raises:
        OSError: It cannot be written; no part of it is left.
    """
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        _write_table(prompts, temporary / _DATA)
        info = {"citation": "", "description": "", "features": _FEATURES, "homepage": ""}
        state: dict[str, Any] = {
            "_data_files": [{"filename": _DATA}],
            "_fingerprint": prompts.fingerprint.removeprefix("blake3:")[:16],
            "_format_columns": None,
            "_format_kwargs": {},
            "_format_type": "torch",
            "_output_all_columns": False,
            "_split": None,
        }
        for name, body in (("dataset_info.json", info), ("state.json", state)):
            atomic_write(temporary / name, json.dumps(body, indent=2).encode())
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return folder_checksums(folder)


def folder_checksums(folder: Path) -> dict[str, str]:
    """Return file name to checksum for a dataset folder; empty where there is none.

    Raises:
        OSError: A file cannot be read.
    """
    if not folder.is_dir():
        return {}
    return {path.name: file_checksum(path) for path in sorted(folder.iterdir()) if path.is_file()}


def _write_table(prompts: PromptSet, path: Path) -> None:
    import pyarrow as pa

    ids, offsets, mask = prompts.columns()
    schema = pa.schema(
        {
            "input_ids": pa.list_(pa.int64()),
            "loss_mask": pa.list_(pa.int64()),
            "seq_len": pa.int64(),
        },
        metadata={"huggingface": json.dumps({"info": {"features": _FEATURES}})},
    )
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        for first in range(0, len(prompts), _ROWS_A_BATCH):
            span = offsets[first : first + _ROWS_A_BATCH + 1]
            places = pa.array((span - span[0]).astype(np.int32))
            inside = slice(int(span[0]), int(span[-1]))
            columns = [
                pa.ListArray.from_arrays(places, pa.array(flat[inside].astype(np.int64)))
                for flat in (ids, mask)
            ]
            columns.append(pa.array(np.diff(span)))
            writer.write_batch(pa.record_batch(columns, schema=schema))


def _data_files(path: Path) -> list[Path]:
    try:
        state = json.loads((path / "state.json").read_bytes())
        names = [str(entry["filename"]) for entry in state["_data_files"]]
    except (ValueError, KeyError, TypeError) as error:
        _broken(path, f"a state.json that cannot be understood ({error!r})")
    for name in names:
        if Path(name).name != name:
            _broken(path, f"a data file outside the folder: {name!r}")
    return [path / name for name in names]


def _batch_rows(path: Path, batch: Any) -> Iterator[tuple[Any, ...]]:
    names = batch.schema.names
    refuse_misspelt(str(path), names, COLUMN)
    if "input_ids" not in names:
        bad(
            "no-input-ids",
            "the column input_ids",
            f"the columns {names}",
            str(path),
            "prepare the dataset with speculators' prepare-data, or give JSONL",
        )
    ids = _lists(path, batch, "input_ids")
    masks = _lists(path, batch, "loss_mask") if "loss_mask" in names else [None] * batch.num_rows
    extra = [
        batch.column(name).to_pylist() if name in names else [None] * batch.num_rows
        for name in ("id", "seq_len")
    ]
    columns = [tuple(names)] * batch.num_rows
    yield from zip(extra[0], ids, masks, extra[1], columns, strict=True)


def _lists(path: Path, batch: Any, name: str) -> list[npt.NDArray[Any]]:
    import pyarrow as pa
    import pyarrow.compute as pc

    column = batch.column(name)
    kind = column.type
    if not (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    ):
        _broken(path, f"the column {name} of type {kind}")
    flat = column.flatten()
    if column.null_count or flat.null_count:
        _broken(path, f"empty cells (null) in the column {name}")
    if not (pa.types.is_integer(flat.type) or pa.types.is_boolean(flat.type)):
        _broken(path, f"the column {name} of {flat.type}")
    lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False)
    values = flat.to_numpy(zero_copy_only=False)
    return np.split(values, np.cumsum(lengths)[:-1]) if len(lengths) else []


def _broken(path: Path, found: str) -> NoReturn:
    bad(
        "broken-dataset",
        "a dataset folder with lists of integers in input_ids and loss_mask",
        found,
        str(path),
        "prepare the dataset again",
    )
