"""Checks each prompt as it is read and gathers the set in flat columns."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from harness.dataset._fields import FieldWatch
from harness.dataset.prompt_set import Note, PromptKind, PromptLimits, PromptSet
from harness.errors import UsageError

_EXAMPLES = 5
_PREVIEW = 60


def show(value: object) -> str:
    """Return a short, one-line picture of a value for an error message."""
    text = repr(value)
    return text if len(text) <= _PREVIEW else text[: _PREVIEW - 3] + "..."


def bad(id: str, expected: str, found: str, where: str, next: str) -> NoReturn:
    """Raise the one error for a fault in the user's prompts."""
    raise UsageError(f"prompts.{id}", expected=expected, found=found, where=where, next=next)


class PromptBuilder:
    """Takes raw prompts one by one, refuses the first bad one, and builds a :class:`PromptSet`.

    Attributes:
        fields: Hears of each prompt's fields, from the readers that have any.
    """

    def __init__(self, limits: PromptLimits) -> None:
        self._limits = limits
        self.fields = FieldWatch()
        self._forbidden = np.array(sorted(limits.forbidden_ids), dtype=np.int64)
        # array grows in place: a list of small arrays would be held twice while joined.
        self._ids = array("i")
        self._mask = array("B")
        self._offsets = array("q", [0])
        self._has_mask = bytearray()
        self._first_place: dict[str, str] = {}
        self._cut: list[str] = []
        self._untrained: list[str] = []

    def add(self, where: str, name: Any, ids: Any, mask: Any) -> None:
        """Check one prompt and take it in.

        Args:
            where: Its place for error messages, such as ``prompts.jsonl:7``.
            name: Its id: text, an integer, or None for the default (its index).
            ids: A list from JSON, or an integer array.
            mask: A list from JSON, an integer or boolean array, or None.

        Raises:
            UsageError: The prompt is bad in any way.
        """
        text = self._name(where, name)
        checked = self._check_ids(where, ids)
        flags = None if mask is None else _check_mask(where, mask, checked.size)
        if checked.size > self._limits.max_tokens:
            self._refuse_long(where, checked.size)
            checked = checked[: self._limits.max_tokens]
            flags = None if flags is None else flags[: self._limits.max_tokens]
            self._cut.append(text)
        self._refuse_forbidden(where, checked)
        if flags is not None and not flags.any():
            self._untrained.append(text)
        self._ids.frombytes(checked.astype(np.int32).tobytes())
        self._mask.frombytes(
            b"\x01" * checked.size if flags is None else flags.astype(np.uint8).tobytes()
        )
        self._has_mask.append(flags is not None)
        self._offsets.append(len(self._ids))

    def build(self, *, kind: PromptKind, path: Path) -> PromptSet:
        """Return the set; a set without prompts is an error."""
        if not self._first_place:
            bad("empty-file", "at least one prompt", "none", str(path), "check how it was written")
        return PromptSet(
            kind=kind,
            path=path,
            names=tuple(self._first_place),
            ids=np.frombuffer(self._ids, dtype=np.int32),
            offsets=np.frombuffer(self._offsets, dtype=np.int64),
            mask=np.frombuffer(self._mask, dtype=np.uint8),
            has_mask=np.frombuffer(self._has_mask, dtype=np.bool_),
            notes=self._notes(),
        )

    def _notes(self) -> list[Note]:
        limit = self._limits.max_tokens
        found = [
            ("prompts.truncated", f"cut to {limit} tokens, as asked", self._cut),
            ("prompts.nothing-trained", "the loss mask holds no 1", self._untrained),
        ]
        cut = [
            Note(id, message, len(names), tuple(names[:_EXAMPLES]))
            for id, message, names in found
            if names
        ]
        return [*cut, *self.fields.notes()]

    def _name(self, where: str, name: Any) -> str:
        if name is None:
            name = len(self._first_place)
        if isinstance(name, bool) or not isinstance(name, (str, int)) or name == "":
            bad("bad-id", "an id of text or an integer", show(name), where, "give each line an id")
        text = str(name)
        first = self._first_place.setdefault(text, where)
        # setdefault hands back this very object only when the name is new.
        if first is not where:
            bad(
                "duplicate-id",
                "each id once (without an id, a prompt is named by its index)",
                f"{show(text)}, already used at {first}",
                where,
                "rename one of the two",
            )
        return text

    def _check_ids(self, where: str, ids: Any) -> npt.NDArray[np.int64]:
        array_ = _integers(where, ids)
        if array_.size == 0:
            bad("empty-prompt", "at least one token id", "[]", where, "drop this prompt")
        low, high = int(array_.min()), int(array_.max())
        if low < 0:
            place = int(array_.argmin())
            bad(
                "negative-id",
                "ids of 0 or more",
                f"{low} at position {place}",
                where,
                "drop padding and ignore markers (-100) before writing the ids",
            )
        if high >= self._limits.vocab_size:
            place = int((array_ >= self._limits.vocab_size).argmax())
            bad(
                "id-out-of-vocabulary",
                f"ids below the vocabulary size {self._limits.vocab_size}",
                f"{int(array_[place])} at position {place}",
                where,
                "tokenise with this model's own tokenizer",
            )
        return array_

    def _refuse_long(self, where: str, size: int) -> None:
        if not self._limits.truncate:
            bad(
                "too-long",
                f"at most {self._limits.max_tokens} tokens",
                f"{size} tokens",
                where,
                "pass --truncate to cut long prompts, or raise --max-model-len",
            )

    def _refuse_forbidden(self, where: str, ids: npt.NDArray[np.int64]) -> None:
        if self._forbidden.size == 0:
            return
        hits = np.isin(ids, self._forbidden)
        if hits.any():
            place = int(hits.argmax())
            bad(
                "forbidden-id",
                f"text only, without the placeholder ids {self._forbidden.tolist()}",
                f"{int(ids[place])} at position {place}",
                where,
                "drop this prompt: the engine would look for an image behind the placeholder",
            )


def _integers(where: str, ids: Any) -> npt.NDArray[np.int64]:
    expected = "input_ids: a list of integers"
    fix = "write the token ids as a flat list of integers"
    if isinstance(ids, np.ndarray):
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            bad("bad-ids", expected, f"{ids.dtype} with {ids.ndim} axes", where, fix)
        return ids.astype(np.int64, copy=False)
    if not isinstance(ids, list):
        bad("bad-ids", expected, show(ids), where, fix)
    # bool is an int to Python and to numpy, so the types are compared exactly.
    if set(map(type, ids)) - {int}:
        place = next(i for i, value in enumerate(ids) if type(value) is not int)
        bad("bad-ids", expected, f"{show(ids[place])} at position {place}", where, fix)
    try:
        return np.array(ids, dtype=np.int64)
    except OverflowError:
        bad("bad-ids", expected, f"a number of more than 64 bits in {show(ids)}", where, fix)


def _check_mask(where: str, mask: Any, tokens: int) -> npt.NDArray[np.bool_]:
    expected, fix = "loss_mask: a list of 0 and 1", "write 1 for each trained token, 0 elsewhere"
    if not isinstance(mask, (list, np.ndarray)):
        bad("bad-mask", expected, show(mask), where, fix)
    if len(mask) != tokens:
        bad(
            "mask-length",
            f"a loss mask as long as the {tokens} input ids",
            f"{len(mask)} values",
            where,
            "write one value for each token",
        )
    place = _odd_mask_value(mask)
    if place is not None:
        bad("mask-values", expected, f"{show(mask[place])} at position {place}", where, fix)
    if isinstance(mask, list):
        return np.frombuffer(bytes(mask), dtype=np.bool_)
    return mask.astype(np.bool_)


def _odd_mask_value(mask: Sequence[Any] | npt.NDArray[Any]) -> int | None:
    if isinstance(mask, np.ndarray):
        if mask.ndim != 1 or mask.dtype.kind not in "iub":
            return 0
        odd = (mask != 0) & (mask != 1)
        return int(odd.argmax()) if odd.any() else None
    # The two sets settle nearly every mask; a mask is as long as its prompt, so this counts.
    if set(map(type, mask)) <= {int, bool} and set(mask) <= {0, 1}:
        return None
    return next(
        place
        for place, value in enumerate(mask)
        if type(value) not in (int, bool) or value not in (0, 1)
    )
