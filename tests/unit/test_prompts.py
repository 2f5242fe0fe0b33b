from __future__ import annotations

import gzip
import json
import shlex
import subprocess
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.dataset.prompts import PromptLimits, PromptSet, prompts_of, read_prompts
from harness.errors import ExitCode, UsageError
from tests.unit.datasets import LIMITS, VOCAB, make_prompts, prompt_rows, write_lines

MEDIA = 499
GOOD = {"id": "good", "input_ids": [1, 2, 3]}


def read(path: Path, **changes: Any) -> PromptSet:
    limits = {"vocab_size": VOCAB, "max_tokens": 8, "forbidden_ids": frozenset({MEDIA})}
    return read_prompts(path, limits=PromptLimits(**{**limits, **changes}))


def refusal(path: Path, **changes: Any) -> UsageError:
    with pytest.raises(UsageError) as caught:
        read(path, **changes)
    assert caught.value.exit_code is ExitCode.USAGE
    assert caught.value.failure.next
    return caught.value


BAD_LINES = [
    ('{"id": "x", "input_ids": [1, 2', "broken-line", "delimiter"),
    ('{"id": "x"} trailing', "broken-line", "Extra data"),
    ("not json", "broken-line", "not json"),
    ('{"input_ids": [1], "input_ids": [2]}', "broken-line", "input_ids"),
    ('{"input_ids": [' + "9" * 5000 + "]}", "broken-line", "digits"),
    ("[" * 200_000, "broken-line", "recursion"),
    ("[1, 2, 3]", "not-an-object", "[1, 2, 3]"),
    ('"text"', "not-an-object", "text"),
    ("null", "not-an-object", "None"),
    ('{"id": "x", "prompt": "hello"}', "no-input-ids", "prompt"),
    ('{"input_ids": "1 2 3"}', "bad-ids", "1 2 3"),
    ('{"input_ids": null}', "bad-ids", "None"),
    ('{"input_ids": [1, 2.0]}', "bad-ids", "2.0 at position 1"),
    ('{"input_ids": [1, "2"]}', "bad-ids", "'2' at position 1"),
    ('{"input_ids": [true, 2]}', "bad-ids", "True at position 0"),
    ('{"input_ids": [[1], [2]]}', "bad-ids", "[1] at position 0"),
    ('{"input_ids": [1, NaN]}', "bad-ids", "nan at position 1"),
    ('{"input_ids": [1, 99999999999999999999]}', "bad-ids", "64 bits"),
    ('{"input_ids": [1, -100]}', "negative-id", "-100 at position 1"),
    ('{"input_ids": [1, 500]}', "id-out-of-vocabulary", "500 at position 1"),
    ('{"input_ids": [1, 4294967297]}', "id-out-of-vocabulary", "4294967297 at position 1"),
    ('{"input_ids": []}', "empty-prompt", "[]"),
    ('{"input_ids": [1, 2, 3, 4, 5, 6, 7, 8, 9]}', "too-long", "9 tokens"),
    ('{"input_ids": [1, 499]}', "forbidden-id", "499 at position 1"),
    ('{"input_ids": [1, 2], "loss_mask": [1]}', "mask-length", "1 values"),
    ('{"input_ids": [1, 2], "loss_mask": []}', "mask-length", "0 values"),
    ('{"input_ids": [1, 2], "loss_mask": [0, 2]}', "mask-values", "2 at position 1"),
    ('{"input_ids": [1, 2], "loss_mask": [0, 1.0]}', "mask-values", "1.0 at position 1"),
    ('{"input_ids": [1, 2], "loss_mask": [-1, 1]}', "mask-values", "-1 at position 0"),
    ('{"input_ids": [1, 2], "loss_mask": "01"}', "bad-mask", "01"),
    ('{"id": "good", "input_ids": [1]}', "duplicate-id", ":1"),
    ('{"id": "", "input_ids": [1]}', "bad-id", "''"),
    ('{"id": true, "input_ids": [1]}', "bad-id", "True"),
    ('{"id": ["a"], "input_ids": [1]}', "bad-id", "['a']"),
]


@pytest.mark.parametrize(
    ("line", "id", "found"), BAD_LINES, ids=[f"{b}-{i}" for i, (_, b, _) in enumerate(BAD_LINES)]
)
def test_each_bad_line_gets_one_clear_error_that_names_it(
    tmp_path: Path, line: str, id: str, found: str
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n\n{line}\n")
    failure = refusal(path).failure
    assert failure.id == f"prompts.{id}"
    assert found in failure.found
    # The blank line counts: an editor shows the same number.
    assert failure.where == f"{path}:3"
    assert max(map(len, failure.to_json().values())) < 300


def test_bytes_that_are_not_utf8_name_their_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'{"input_ids": [1]}\n{"id": "\xff", "input_ids": [1]}\n')
    failure = refusal(path).failure
    assert (failure.id, failure.where) == ("prompts.broken-line", f"{path}:2")
    assert "UTF-8" in failure.found


@pytest.mark.parametrize("text", ["", "\n \n\n"])
def test_file_without_prompts_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    assert refusal(path).failure.id == "prompts.empty-file"


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.jsonl").failure.id == "prompts.missing-file"


def test_unreadable_file_is_an_error(tmp_path: Path) -> None:
    loop = tmp_path / "loop.jsonl"
    loop.symlink_to(loop)
    assert refusal(loop).failure.id == "prompts.unreadable"
    failure = refusal(Path("/proc/self/mem")).failure  # opens, then every read fails
    assert failure.id == "prompts.unreadable"
    assert "Input/output error" in failure.found


def test_folder_that_is_no_dataset_is_an_error(tmp_path: Path) -> None:
    assert refusal(tmp_path).failure.id == "prompts.not-a-dataset"
    (tmp_path / "dataset_dict.json").write_text("{}")
    (tmp_path / "train").mkdir()
    failure = refusal(tmp_path).failure
    assert failure.id == "prompts.dataset-splits"
    assert str(tmp_path / "train") in failure.next


def test_prompts_come_back_in_order_with_ids_and_masks(tmp_path: Path) -> None:
    rows = prompt_rows(7)
    prompts = make_prompts(tmp_path, 7)
    assert len(prompts) == 7
    assert prompts.kind == "jsonl"
    assert prompts.tokens == sum(len(row["input_ids"]) for row in rows)
    for index, (row, prompt) in enumerate(zip(rows, prompts, strict=True)):
        assert (prompt.id, prompt.index) == (row["id"], index)
        assert prompt.token_list() == row["input_ids"]
        assert prompts.lengths[index] == prompt.tokens == len(row["input_ids"])
        if "loss_mask" in row:
            assert prompt.loss_mask is not None
            assert prompt.loss_mask.tolist() == row["loss_mask"]
        else:
            assert prompt.loss_mask is None
            assert prompts.effective_mask(index).tolist() == [1] * prompt.tokens
    assert [p.id for p in prompts[2:4]] == ["p2", "p3"]
    assert prompts[-1].id == "p6"
    with pytest.raises(IndexError):
        prompts[7]


def test_token_lists_are_plain_integers_for_the_wire(tmp_path: Path) -> None:
    prompts = make_prompts(tmp_path)
    assert json.loads(json.dumps(prompts[0].token_list())) == prompts[0].input_ids.tolist()


def test_prompts_cannot_be_changed(tmp_path: Path) -> None:
    prompt = make_prompts(tmp_path)[1]
    assert prompt.loss_mask is not None
    for values in (prompt.input_ids, prompt.loss_mask):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 1


def test_id_defaults_to_the_index_and_may_be_a_number(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "p.jsonl",
        [{"input_ids": [1]}, {"id": 77, "input_ids": [2]}, {"id": None, "input_ids": [3]}],
    )
    assert [prompt.id for prompt in read(path)] == ["0", "77", "2"]


def test_default_id_that_meets_a_given_one_is_an_error(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "p.jsonl", [{"id": "1", "input_ids": [1]}, {"input_ids": [2]}])
    failure = refusal(path).failure
    assert failure.id == "prompts.duplicate-id"
    assert f"{path}:1" in failure.found


def test_null_mask_is_no_mask_and_booleans_are_a_mask(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "p.jsonl",
        [
            {"input_ids": [1, 2], "loss_mask": None},
            {"input_ids": [1, 2], "loss_mask": [False, True]},
        ],
    )
    first, second = read(path)
    assert first.loss_mask is None
    assert second.loss_mask is not None
    assert second.loss_mask.tolist() == [0, 1]


def test_ids_in_memory_are_held_to_the_same_rules(tmp_path: Path) -> None:
    prompts = prompts_of([[1, 2], np.array([3, 4, 5], np.int32), (6,)], limits=LIMITS)
    assert [p.token_list() for p in prompts] == [[1, 2], [3, 4, 5], [6]]
    path = write_lines(tmp_path / "p.jsonl", [{"input_ids": p.token_list()} for p in prompts])
    assert prompts.fingerprint == read_prompts(path, limits=LIMITS).fingerprint
    for wrong, id in (([VOCAB], "id-out-of-vocabulary"), ([1.5], "bad-ids"), ([], "empty-prompt")):
        with pytest.raises(UsageError) as caught:
            prompts_of([[1], wrong], limits=LIMITS)  # type: ignore[list-item]
        assert caught.value.failure.id == f"prompts.{id}"
        assert caught.value.failure.where == "prompt 1"


def test_truncate_cuts_ids_and_mask_and_says_so(tmp_path: Path) -> None:
    long = list(range(20))
    path = write_lines(
        tmp_path / "p.jsonl",
        [
            {"id": "long", "input_ids": long, "loss_mask": [0] * 10 + [1] * 10},
            {"id": "exact", "input_ids": long[:8]},
        ],
    )
    prompts = read(path, truncate=True)
    assert prompts[0].token_list() == long[:8]
    assert prompts[1].token_list() == long[:8]
    notes = {note.id: note for note in prompts.notes}
    assert notes["prompts.truncated"].count == 1
    assert notes["prompts.truncated"].examples == ("long",)
    # All its trained tokens were behind the cut.
    assert notes["prompts.nothing-trained"].examples == ("long",)


def test_placeholder_behind_the_cut_is_no_fault_but_a_wrong_id_is(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "p.jsonl", [{"input_ids": [1] * 8 + [MEDIA]}])
    assert read(path, truncate=True)[0].tokens == 8
    path = write_lines(tmp_path / "p.jsonl", [{"input_ids": [1] * 8 + [VOCAB]}])
    assert refusal(path, truncate=True).failure.id == "prompts.id-out-of-vocabulary"


def test_fingerprint_changes_with_ids_masks_names_order_and_grouping(tmp_path: Path) -> None:
    base = [
        {"id": "a", "input_ids": [1, 2], "loss_mask": [1, 1]},
        {"id": "b", "input_ids": [3]},
    ]
    variants: list[list[dict[str, Any]]] = [
        base,
        base[::-1],
        [{**base[0], "id": "c"}, base[1]],
        [{**base[0], "input_ids": [1, 3]}, base[1]],
        [{**base[0], "loss_mask": [0, 1]}, base[1]],
        [{"id": "a", "input_ids": [1, 2]}, base[1]],
        [{"id": "a", "input_ids": [1], "loss_mask": [1]}, {"id": "b", "input_ids": [2, 3]}],
        [base[0]],
    ]
    path = tmp_path / "p.jsonl"
    seen = [read(write_lines(path, rows)).fingerprint for rows in variants]
    assert len(set(seen)) == len(variants)
    assert read(write_lines(path, base)).fingerprint == seen[0]
    # A field the harness does not use, other spacing, another file: the same prompts.
    (tmp_path / "q.jsonl").write_text(
        '{"extra": {"a": 1}, "loss_mask":[1,1],"input_ids":[1,2],"id":"a"}\n\n'
        '{"input_ids":[3],"id":"b"}'
    )
    assert read(tmp_path / "q.jsonl").fingerprint == seen[0]


def test_conversations_are_recognised_and_need_tokenising(tmp_path: Path) -> None:
    for field in ("conversations", "messages"):
        path = write_lines(tmp_path / "p.jsonl", [{"id": "a", field: []}])
        assert refusal(path).failure.id == "prompts.needs-tokenising"


def test_tokenised_conversations_keep_their_source(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "chat.jsonl", [{"id": "a", "messages": []}])
    tokens = write_lines(tmp_path / "ids.jsonl", [{"id": "a", "input_ids": [1, 2]}])
    asked: list[Path] = []

    def tokenise(source: Path) -> Path:
        asked.append(source)
        return tokens

    prompts = read_prompts(path, limits=LIMITS, tokenise=tokenise)
    assert asked == [path]
    assert (prompts.kind, prompts.path) == ("conversations", path)
    assert prompts[0].token_list() == [1, 2]


def test_ids_beside_a_conversation_win(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "p.jsonl", [{"messages": [], "input_ids": [4]}])
    assert read(path)[0].token_list() == [4]


def test_large_file_is_held_as_five_bytes_a_token(tmp_path: Path) -> None:
    rows, tokens = 400, 1000
    random = np.random.default_rng(0)
    path = write_lines(
        tmp_path / "p.jsonl",
        ({"input_ids": random.integers(0, VOCAB, tokens).tolist()} for _ in range(rows)),
    )
    limits = PromptLimits(vocab_size=VOCAB, max_tokens=tokens)
    tracemalloc.start()
    try:
        prompts = read_prompts(path, limits=limits)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert prompts.tokens == rows * tokens
    assert held < rows * tokens * 6.5
    assert peak < rows * tokens * 10


@pytest.mark.parametrize("name", ["loss_masks", "los_mask", "lossMask", "Loss-Mask", "loss_mask "])
def test_a_misspelt_loss_mask_is_an_error_that_says_what_was_meant(
    tmp_path: Path, name: str
) -> None:
    path = write_lines(tmp_path / "p.jsonl", [GOOD, {"input_ids": [1, 2], name: [0, 1]}])
    failure = refusal(path).failure
    assert (failure.id, failure.where) == ("prompts.misspelt-field", f"{path}:2")
    assert repr(name) in failure.found
    assert "did you mean loss_mask?" in failure.next


@pytest.mark.parametrize(
    ("row", "meant"),
    [
        ({"input_id": [1]}, "input_ids"),
        ({"inputIds": [1]}, "input_ids"),
        ({"messages": [], "tool": []}, "tools"),
        ({"messages": [], "Tools": []}, "tools"),
    ],
)
def test_other_misspelt_fields_that_count_are_errors_too(
    tmp_path: Path, row: dict[str, Any], meant: str
) -> None:
    path = write_lines(tmp_path / "p.jsonl", [row])
    with pytest.raises(UsageError) as caught:
        read_prompts(path, limits=LIMITS, tokenise=lambda source: source)
    assert caught.value.failure.id == "prompts.misspelt-field"
    assert f"did you mean {meant}?" in caught.value.failure.next


def test_unknown_fields_are_noted_once_each_with_count_and_first_place(tmp_path: Path) -> None:
    rows = [
        {"input_ids": [1]},
        {"input_ids": [1], "loss_mask": [1], "loss_mask_v2": [0], "uid": 7},
        {"input_ids": [1], "uid": None, "attention_mask": [1], "labels": [1]},
    ]
    path = write_lines(tmp_path / "p.jsonl", rows)
    notes = {note.message.split("'")[1]: note for note in read(path).notes}
    assert set(notes) == {"loss_mask_v2", "uid", "attention_mask", "labels"}
    assert {note.id for note in notes.values()} == {"prompts.unknown-field"}
    assert notes["uid"].count == 2
    assert notes["uid"].examples == (f"first at {path}:2",)
    assert notes["labels"].examples == (f"first at {path}:3",)


def test_the_fields_of_a_conversation_are_noted_too(tmp_path: Path) -> None:
    rows = [{"id": "a", "messages": [], "system": "Be brief.", "conversation_id": 7}]
    path = write_lines(tmp_path / "chat.jsonl", rows)
    tokens = write_lines(tmp_path / "ids.jsonl", [GOOD])
    first, second = read_prompts(path, limits=LIMITS, tokenise=lambda _: tokens).notes
    assert (first.count, first.examples) == (1, (f"first at {path}:1",))
    assert "'system'" in first.message
    assert "'conversation_id'" in second.message


def test_a_conversation_beside_ids_is_no_unknown_field(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "p.jsonl", [{"messages": [], "tools": [], "input_ids": [4]}])
    assert read(path).notes == ()


def test_thousands_of_unknown_names_give_a_handful_of_notes(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "p.jsonl", [{"input_ids": [1], f"field {n}": n} for n in range(3000)]
    )
    notes = read(path).notes
    assert len(notes) < 30
    assert sum(note.count for note in notes) == 3000


def packed(path: Path, what: str) -> Path:
    text = json.dumps(GOOD) + "\n"
    data = {
        "gzip": gzip.compress(text.encode()),
        "UTF-16 with a mark": text.encode("utf-16"),
        "UTF-16, little end first": text.encode("utf-16-le"),
        "UTF-16, big end first": text.encode("utf-16-be"),
    }[what]
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("what", "name", "id"),
    [
        ("gzip", "p.jsonl.gz", "compressed"),
        ("gzip", "p q.jsonl", "compressed"),
        ("UTF-16 with a mark", "p.jsonl", "utf-16"),
        ("UTF-16, little end first", "p.jsonl", "utf-16"),
        ("UTF-16, big end first", "p.jsonl", "utf-16"),
    ],
)
def test_a_packed_or_utf16_file_is_one_error_whose_command_mends_it(
    tmp_path: Path, what: str, name: str, id: str
) -> None:
    path = packed(tmp_path / name, what)
    failure = refusal(path).failure
    assert (failure.id, failure.where) == (f"prompts.{id}", str(path))
    assert what.split()[0].rstrip(",") in failure.found
    command, then = failure.next.split(", then --prompts ")
    subprocess.run(command, shell=True, check=True)
    (made,) = shlex.split(then)
    assert [prompt.id for prompt in read(Path(made))] == ["good"]


ids = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20)


@settings(deadline=None)
@given(st.lists(st.tuples(ids, st.booleans(), st.integers(0, 2**20)), min_size=1, max_size=8))
def test_any_good_file_reads_back_as_written(tmp_path_factory: Any, drawn: list[Any]) -> None:
    rows: list[dict[str, Any]] = []
    for index, (row_ids, masked, bits) in enumerate(drawn):
        row: dict[str, Any] = {"id": f"№{index}", "input_ids": row_ids}
        if masked:
            row["loss_mask"] = [bits >> place & 1 for place in range(len(row_ids))]
        rows.append(row)
    path = write_lines(tmp_path_factory.mktemp("p") / "p.jsonl", rows)
    back = [
        {"id": p.id, "input_ids": p.token_list()}
        | ({} if p.loss_mask is None else {"loss_mask": p.loss_mask.tolist()})
        for p in read_prompts(path, limits=LIMITS)
    ]
    assert back == rows
