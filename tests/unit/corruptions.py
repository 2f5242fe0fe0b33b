"""A catalogue of ways in which a good dataset can go wrong, for the tests of verify."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from harness.dataset._files import digest
from harness.dataset.arrow import folder_checksums, write_prompts
from harness.dataset.prompt_set import PromptSet
from harness.dataset.prompts import read_prompts
from harness.dataset.run_info import encode_run, read_run
from harness.dataset.samples import read_sample
from tests.unit.datasets import LIMITS, encode_sample, prompt_rows, write_lines

COUNT = 6  # prompts in the dataset that is corrupted


def sample(out: Path, index: int) -> Path:
    return out / f"hs_{index}.safetensors"


def flip(path: Path, place: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 0x10
    path.write_bytes(data)


def cut(path: Path, count: int) -> None:
    path.write_bytes(path.read_bytes()[:-count])


def edit_lines(out: Path, change: Callable[[list[dict[str, Any]]], Any]) -> None:
    path = out / "manifest.jsonl"
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    changed = change(lines)
    lines = lines if changed is None else changed
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def sign_run(out: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Edit run.json as a careful forger would: its own checksum is right again."""
    run = read_run(out)
    change(run)
    (out / "run.json").write_bytes(encode_run(run))


def rewrite(out: Path, index: int, change: Callable[[Any, list[int]], Any]) -> None:
    """Change a sample's content and make every checksum in the folder agree with it.

    What a fault before the writer leaves: the files are consistent, the content is wrong.
    """
    before = read_sample(sample(out, index))
    hidden, ids = before.hidden.copy(), before.token_ids.tolist()
    made = change(hidden, ids)
    hidden, ids = made if isinstance(made, tuple) else (hidden, ids)
    data = encode_sample(hidden, ids)
    sample(out, index).write_bytes(data)
    sign_line(out, index, {"checksum": digest(data), "bytes": len(data)})


def sign_line(out: Path, index: int, change: dict[str, Any]) -> None:
    edit_lines(out, lambda lines: lines[index].update(change))
    sign_run(out, lambda run: run.update(manifest=digest((out / "manifest.jsonl").read_bytes())))


def sign_arrow(out: Path, prompts: PromptSet) -> None:
    files = write_prompts(prompts, out / "prompts_arrow")
    sign_run(out, lambda run: run.update(arrow=files))


def hidden_of(out: Path, index: int) -> Any:
    return read_sample(sample(out, index)).hidden


def set_rows(rows: slice, column: int, bits: int) -> Callable[[Any, list[int]], None]:
    """Set rows to one bit pattern, given as the upper half of a float32."""

    def change(hidden: Any, ids: list[int]) -> None:
        view = hidden.view(f"u{hidden.dtype.itemsize}")
        view[rows, column] = bits << (16 if hidden.dtype.itemsize == 4 else 0)

    return change


def nan(hidden: Any, ids: list[int]) -> None:
    hidden.view(f"u{hidden.dtype.itemsize}")[1, 1, 3] = (
        0x7FC00000 if hidden.dtype.itemsize == 4 else 0x7FC0
    )


def copy_column(hidden: Any, ids: list[int]) -> None:
    hidden[:, 2] = hidden[:, 0]


def steal(out: Path, rows: slice) -> Callable[[Any, list[int]], None]:
    other = hidden_of(out, 5)

    def change(hidden: Any, ids: list[int]) -> None:
        hidden[rows] = other[rows]

    return change


def drop_row(hidden: Any, ids: list[int]) -> Any:
    return hidden[:-1], ids


def other_token(hidden: Any, ids: list[int]) -> Any:
    return hidden, [(ids[0] + 1) % 500, *ids[1:]]


def other_type(hidden: Any, ids: list[int]) -> Any:
    return hidden.astype(np.float16) if hidden.dtype == np.float32 else hidden.view(np.float16), ids


def less_wide(hidden: Any, ids: list[int]) -> Any:
    return np.ascontiguousarray(hidden[:, :, :-1]), ids


def one_column_less(hidden: Any, ids: list[int]) -> Any:
    return np.ascontiguousarray(hidden[:, :-1]), ids


def swapped_axes(hidden: Any, ids: list[int]) -> Any:
    return np.ascontiguousarray(hidden.transpose(1, 0, 2)), ids


def swap_files(out: Path, a: int, b: int) -> None:
    keep = sample(out, a).read_bytes()
    sample(out, a).write_bytes(sample(out, b).read_bytes())
    sample(out, b).write_bytes(keep)


def move_behind_link(path: Path) -> None:
    """The very same bytes, but behind a link: what it points at can change or go."""
    elsewhere = path.parent.parent / f"elsewhere-{path.name}"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def swap_samples(out: Path, a: int, b: int) -> None:
    """Two results exchanged before they were published."""
    swap_files(out, a, b)
    for index in (a, b):
        data = sample(out, index).read_bytes()
        sign_line(out, index, {"checksum": digest(data), "bytes": len(data)})


def swap_lines(lines: list[dict[str, Any]]) -> None:
    for field in ("id", "checksum"):
        lines[0][field], lines[1][field] = lines[1][field], lines[0][field]


def rewrite_masks(out: Path, *, flip_of: int) -> None:
    """The Arrow folder's mask of one prompt changed, its checksums right again."""
    rows = prompt_rows(COUNT)
    mask = rows[flip_of].setdefault("loss_mask", [1] * len(rows[flip_of]["input_ids"]))
    mask[0] ^= 1
    path = write_lines(out.parent / "changed.jsonl", rows)
    sign_arrow(out, read_prompts(path, limits=LIMITS))


def wrong_seq_len(out: Path) -> None:
    import pyarrow as pa

    path = out / ARROW_DATA
    with pa.ipc.open_stream(path.read_bytes()) as reader:
        table = reader.read_all()
    lengths = table["seq_len"].to_pylist()
    lengths[2] -= 1
    changed = table.set_column(2, table.schema.field(2), [lengths])
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(changed)
    files = folder_checksums(path.parent)
    sign_run(out, lambda run: run.update(arrow=files))


def rewrite_prompts(out: Path, change: Callable[[list[dict[str, Any]]], Any]) -> None:
    rows = prompt_rows(COUNT)
    change(rows)
    path = write_lines(out.parent / "changed.jsonl", rows)
    sign_arrow(out, read_prompts(path, limits=LIMITS))


ARROW_DATA = "prompts_arrow/data-00000-of-00001.arrow"


def replace_line(out: Path, number: int, text: str) -> None:
    lines = (out / "manifest.jsonl").read_text().splitlines()
    lines[number] = text
    (out / "manifest.jsonl").write_text("".join(f"{line}\n" for line in lines))


def add_one(counts: dict[str, Any], name: str) -> None:
    counts[name] += 1


ODD_RUNS: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
    ("counts null", lambda r: r.update(counts=None)),
    ("a count of text", lambda r: r["counts"].update(tokens="many")),
    ("no count of tokens", lambda r: r["counts"].pop("tokens")),
    ("layers a list", lambda r: r.update(layers=[])),
    ("model null", lambda r: r.update(model=None)),
    ("prompts a list", lambda r: r.update(prompts=[])),
    ("identity null", lambda r: r.update(identity=None)),
    ("arrow a text", lambda r: r.update(arrow="x")),
    ("no state", lambda r: r.pop("state")),
    ("no manifest", lambda r: r.pop("manifest")),
]

# What is done to a good folder, and one (id, check) that must be among the findings.
Corruption = tuple[str, Callable[[Path], Any], str, str]
CATALOGUE: list[Corruption] = [
    # the sample files
    ("last bit of a sample", lambda o: flip(sample(o, 2)), "p2", "checksum"),
    ("a bit in the middle", lambda o: flip(sample(o, 2), 700), "p2", "checksum"),
    ("a bit of the header", lambda o: flip(sample(o, 2), 20), "p2", "broken"),
    ("sample cut by a byte", lambda o: cut(sample(o, 2), 1), "p2", "broken"),
    ("sample emptied", lambda o: sample(o, 2).write_bytes(b""), "p2", "broken"),
    (
        "sample grown by a byte",
        lambda o: sample(o, 2).write_bytes(sample(o, 2).read_bytes() + b"\0"),
        "p2",
        "broken",
    ),
    ("sample missing", lambda o: sample(o, 2).unlink(), "p2", "missing"),
    (
        "sample replaced by a folder",
        lambda o: (sample(o, 2).unlink(), sample(o, 2).mkdir()),
        "p2",
        "unreadable",
    ),
    (
        "sample replaced by another",
        lambda o: shutil.copy(sample(o, 3), sample(o, 2)),
        "p2",
        "checksum",
    ),
    ("sample behind a link", lambda o: move_behind_link(sample(o, 2)), "p2", "link"),
    (
        "sample behind a link to nothing",
        lambda o: (sample(o, 2).unlink(), sample(o, 2).symlink_to(o / "nothing")),
        "p2",
        "link",
    ),
    (
        "an unlisted sample behind a link",
        lambda o: sample(o, 78).symlink_to(sample(o, 2)),
        "hs_78.safetensors",
        "extra",
    ),
    ("two samples swapped on disk", lambda o: swap_files(o, 1, 2), "p1", "checksum"),
    (
        "an unlisted sample",
        lambda o: shutil.copy(sample(o, 2), sample(o, 77)),
        "hs_77.safetensors",
        "extra",
    ),
    (
        "a stale lock of a writer",
        lambda o: (o / "hs_2.safetensors.lock").touch(),
        "hs_2.safetensors.lock",
        "extra",
    ),
    # content that is wrong although every checksum agrees
    ("a NaN", lambda o: rewrite(o, 1, nan), "p1", "finite"),
    ("an infinity", lambda o: rewrite(o, 1, set_rows(slice(0, 1), 0, 0x7F80)), "p1", "finite"),
    ("a row of zeros", lambda o: rewrite(o, 1, set_rows(slice(2, 3), 1, 0)), "p1", "zero-row"),
    (
        "a row of minus zeros",
        lambda o: rewrite(o, 1, set_rows(slice(2, 3), 1, 0x8000)),
        "p1",
        "zero-row",
    ),
    ("a column of zeros", lambda o: rewrite(o, 1, set_rows(slice(None), 2, 0)), "p1", "zero-row"),
    (
        "a constant row",
        lambda o: rewrite(o, 1, set_rows(slice(0, 1), 2, 0x3F80)),
        "p1",
        "constant-row",
    ),
    ("two equal layers", lambda o: rewrite(o, 1, copy_column), "p1", "equal-columns"),
    (
        "all rows of another sample",
        lambda o: rewrite(o, 4, steal(o, slice(0, 4))),
        "p5",
        "cross-sample",
    ),
    (
        "one row of another sample",
        lambda o: rewrite(o, 4, steal(o, slice(2, 3))),
        "p5",
        "cross-sample",
    ),
    ("last row dropped", lambda o: rewrite(o, 1, drop_row), "p1", "rows"),
    ("another token stored", lambda o: rewrite(o, 1, other_token), "p1", "token-ids"),
    ("another dtype", lambda o: rewrite(o, 1, other_type), "p1", "dtype"),
    ("rows less wide", lambda o: rewrite(o, 1, less_wide), "p1", "hidden-size"),
    ("a layer less", lambda o: rewrite(o, 1, one_column_less), "p1", "columns"),
    ("axes swapped", lambda o: rewrite(o, 1, swapped_axes), "p1", "rows"),
    ("two samples swapped before", lambda o: swap_samples(o, 1, 2), "p1", "token-ids"),
    # the manifest
    ("manifest missing", lambda o: (o / "manifest.jsonl").unlink(), "run.json", "complete"),
    ("manifest line missing", lambda o: edit_lines(o, lambda n: n[:-1]), "run.json", "complete"),
    ("manifest line twice", lambda o: edit_lines(o, lambda n: [*n, n[0]]), "p0", "manifest-line"),
    (
        "manifest line torn",
        lambda o: cut(o / "manifest.jsonl", 9),
        "manifest.jsonl",
        "manifest-line",
    ),
    (
        "manifest in another order",
        lambda o: edit_lines(o, lambda n: n[::-1]),
        "manifest.jsonl",
        "manifest-checksum",
    ),
    (
        "manifest with other names",
        lambda o: edit_lines(o, lambda n: n[0].update(id="x")),
        "manifest.jsonl",
        "manifest-checksum",
    ),
    ("ids and checksums swapped", lambda o: edit_lines(o, swap_lines), "p1", "checksum"),
    (
        "path out of the folder",
        lambda o: edit_lines(o, lambda n: n[0].update(file="../x.safetensors")),
        "manifest.jsonl",
        "manifest-line",
    ),
    ("another token count", lambda o: sign_line(o, 0, {"tokens": 3}), "p0", "tokens"),
    ("another dtype in a line", lambda o: sign_line(o, 0, {"dtype": "float16"}), "p0", "dtype"),
    (
        "another size in a line",
        lambda o: sign_line(o, 0, {"bytes": sample(o, 0).stat().st_size + 1}),
        "p0",
        "bytes",
    ),
    (
        "another mask in a line",
        lambda o: sign_line(o, 1, {"loss_mask": digest(b"")}),
        "p1",
        "loss-mask",
    ),
    ("no mask in a line", lambda o: sign_line(o, 1, {"loss_mask": None}), "p1", "loss-mask"),
    (
        "another name in a line",
        lambda o: sign_line(o, 1, {"id": "x"}),
        "prompts_arrow",
        "prompts-fingerprint",
    ),
    *(
        (
            f"manifest line that is {text}",
            lambda o, text=text: replace_line(o, 2, text),
            "manifest.jsonl",
            "manifest-line",
        )
        for text in ("null", "[]", "3", '"x"', "", "{}", "[" * 100_000)
    ),
    # run.json
    *(
        (
            f"run that counts other {name}, signed",
            lambda o, name=name: sign_run(o, lambda r: add_one(r["counts"], name)),
            "run.json",
            "counts",
        )
        for name in ("samples", "tokens", "bytes")
    ),
    (
        "run that counts other prompt tokens, signed",
        lambda o: sign_run(o, lambda r: add_one(r["prompts"], "tokens")),
        "run.json",
        "counts",
    ),
    *(
        (
            f"run with {name}, signed",
            lambda o, change=change: sign_run(o, change),
            "run.json",
            "run",
        )
        for name, change in ODD_RUNS
    ),
    (
        "run complete without its manifest's checksum, signed",
        lambda o: sign_run(o, lambda r: r.update(manifest=None)),
        "manifest.jsonl",
        "manifest-checksum",
    ),
    (
        "run of more prompts than can be listed, signed",
        lambda o: sign_run(o, lambda r: r["prompts"].update(count=10**15)),
        "run.json",
        "complete",
    ),
    ("run missing", lambda o: (o / "run.json").unlink(), "run.json", "run"),
    ("run cut", lambda o: cut(o / "run.json", 3), "run.json", "run"),
    ("run edited", lambda o: flip(o / "run.json", 200), "run.json", "run"),
    (
        "run with other depths, signed",
        lambda o: sign_run(o, lambda r: r["identity"].update(depths=[1, 2, 3])),
        "run.json",
        "run",
    ),
    (
        "run with another model, signed",
        lambda o: sign_run(o, lambda r: r["model"].update(fingerprint="x")),
        "run.json",
        "run",
    ),
    (
        "run of fewer prompts, signed",
        lambda o: sign_run(o, lambda r: r["prompts"].update(count=COUNT - 1)),
        f"p{COUNT - 1}",
        "extra",
    ),
    (
        "run not complete, signed",
        lambda o: sign_run(o, lambda r: r.update(state="incomplete")),
        "run.json",
        "complete",
    ),
    (
        "run without a field, signed",
        lambda o: sign_run(o, lambda r: r.pop("counts")),
        "run.json",
        "run",
    ),
    # the prompts beside
    (
        "Arrow folder missing",
        lambda o: shutil.rmtree(o / "prompts_arrow"),
        "prompts_arrow",
        "arrow",
    ),
    ("Arrow data flipped", lambda o: flip(o / ARROW_DATA), ARROW_DATA, "arrow-checksum"),
    ("Arrow data cut", lambda o: cut(o / ARROW_DATA, 700), "prompts_arrow", "arrow"),
    (
        "Arrow state changed",
        lambda o: flip(o / "prompts_arrow/state.json", 5),
        "prompts_arrow",
        "arrow",
    ),
    (
        "Arrow file added",
        lambda o: (o / "prompts_arrow/x").touch(),
        "prompts_arrow/x",
        "arrow-checksum",
    ),
    ("another seq_len, signed", wrong_seq_len, "p2", "seq-len"),
    ("a given mask changed, signed", lambda o: rewrite_masks(o, flip_of=1), "p1", "loss-mask"),
    ("an absent mask changed, signed", lambda o: rewrite_masks(o, flip_of=0), "p0", "loss-mask"),
    (
        "prompts in another order, signed",
        lambda o: rewrite_prompts(o, lambda n: n.reverse()),
        "p0",
        "token-ids",
    ),
    (
        "a prompt less, signed",
        lambda o: rewrite_prompts(o, lambda n: n.pop()),
        "prompts_arrow",
        "arrow",
    ),
    (
        "another token, signed",
        lambda o: rewrite_prompts(o, lambda n: n[3]["input_ids"].__setitem__(0, 1)),
        "p3",
        "token-ids",
    ),
]
