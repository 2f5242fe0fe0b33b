"""The gate against edits between the model and the connector, which give plausible, wrong rows."""

from __future__ import annotations

import contextlib

import pytest

from tests.unit import row_edits, slot_edits
from tests.unit.edited import installed
from tests.unit.mutated import answer_to, not_told, told_by, told_where_it_breaks
from tests.unit.row_edits import HARMLESS, MODEL, formatted

BREAKS = row_edits.BREAKS | slot_edits.BREAKS
# Each costs a fifth of a second: those that are much like another are left to `make test-slow`.
LIKE_ANOTHER = frozenset({
    "buffer's method called by a name", "each depth changed where the model ran",
    "all ranks but the first write", "drafter's type is not the model's",
    "a row of the buffer emptied", "buffer stored into through a view of it", "buffer added to",
    "buffer written as a result", "buffer handed to a function", "each depth changed in a loop",
    "depths handed to a method of the model", "cache emptied by the writer", "rows written twice",
    "slots emptied once they are stored",
    "kept state replaced by a method of the runner", "states put into a list of the runner",
    "states kept by the runner once they are sampled", "each depth changed in a comprehension",
    "ids filtered", "ids sorted downwards", "ids read under another key",
    "configuration changes an id", "shared setter drops an id", "another name everywhere",
    "drafter runs for another method", "last row left out", "rows backwards",
    "first depth missing", "rows of last hidden states", "state unpacked in another order",
    "buffer read from its second row", "step of one token is passed over",
    "longest prompts are passed over", "slots of the batch from the second on",
    "slots of the buffer's second half", "second group keeps the first one's slots",
    "rows reversed where it writes",
    "block size of another axis", "cache of an ordinary class",
    "kernel forgets the place in the block", "blocks of another request",
    "slots read by another axis", "output saved with its last token",
    "block size of the whole model", "lock under another key",
})  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=[pytest.mark.slow] * (one in LIKE_ANOTHER)) for one in BREAKS],
)
def test_break_on_the_way_of_a_row_is_told(name: str) -> None:
    told_where_it_breaks(BREAKS[name])


@pytest.mark.parametrize("path", dict.fromkeys(path for path, _ in HARMLESS.values()))
def test_harmless_edits_of_a_file_are_not_told(path: str) -> None:
    edits = [edit for at, edit in HARMLESS.values() if at == path and edit is not formatted]

    def every(text: str) -> str:
        for edit in edits:
            with contextlib.suppress(AssertionError):  # another one has changed that line
                text = edit(text)
        return formatted(text)

    not_told(path, every)


@pytest.mark.slow
@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_edit_on_the_way_of_a_row_is_not_told(name: str) -> None:
    not_told(*HARMLESS[name])


def test_draft_layer_that_moved_and_is_re_exported_is_not_told() -> None:
    release = installed()
    answer = answer_to({
        MODEL: "from vllm.model_executor.models.cache_only import *\n",
        "vllm/model_executor/models/cache_only.py": release.text(MODEL),
    })  # fmt: skip
    assert told_by(answer) == {}


def test_there_are_enough_of_both() -> None:
    assert len(BREAKS) >= 16
    assert len(HARMLESS) >= 8
