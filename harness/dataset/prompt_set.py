"""Prompts as the harness holds them: token ids, loss masks and names, in flat columns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt
from blake3 import blake3

PromptKind = Literal["jsonl", "arrow", "conversations"]
Ids = npt.NDArray[np.int32]
Mask = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class PromptLimits:
    """What the model and the engine accept.

    Attributes:
        vocab_size: Ids must be below this.
        max_tokens: The longest prompt, in tokens. The engine also wants room for one
            output token, so this is usually its ``max_model_len - 1``.
        truncate: Accept longer prompts and cut them to ``max_tokens``.
        forbidden_ids: Ids that the engine would treat as something else, such as the
            media placeholder of a multimodal wrapper.
    """

    vocab_size: int
    max_tokens: int
    truncate: bool = False
    forbidden_ids: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Note:
    """Something the user should hear about that is no error.

    Attributes:
        id: Stable dotted id, such as ``prompts.truncated``.
        message: One sentence.
        count: How many prompts it concerns.
        examples: Names of the first few of them.
    """

    id: str
    message: str
    count: int
    examples: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the note as a JSON object."""
        return {
            "id": self.id,
            "message": self.message,
            "count": self.count,
            "examples": list(self.examples),
        }


@dataclass(frozen=True, eq=False)
class Prompt:
    """One prompt.

    The arrays are read-only views into the columns of the set, so a hundred thousand
    prompts cost five bytes a token and nothing else. Comparing prompts compares identity;
    compare the arrays instead.

    Attributes:
        id: The user's name for it, unique in the set.
        index: Its place in the set; its sample is ``hs_<index>.safetensors``.
        input_ids: int32 ``[tokens]``.
        loss_mask: uint8 ``[tokens]`` of 0 and 1, or None where the source had none.
    """

    id: str
    index: int
    input_ids: Ids
    loss_mask: Mask | None

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return int(self.input_ids.size)

    def token_list(self) -> list[int]:
        """Return the ids as plain integers, as JSON messages need them."""
        ids: list[int] = self.input_ids.tolist()
        return ids


class PromptSet(Sequence[Prompt]):
    """An ordered, immutable set of prompts, and a sequence of :class:`Prompt`.

    Attributes:
        kind: Where the prompts came from.
        path: The file or folder that the user named.
        names: The ids, in order.
        notes: What the user should hear about (cut prompts, for example).
        fingerprint: ``blake3:<hex>`` over names, ids, masks and order, taken after any cut.
            The same prompts from JSONL and from Arrow have the same fingerprint.
    """

    def __init__(
        self,
        *,
        kind: PromptKind,
        path: Path,
        names: Sequence[str],
        ids: Ids,
        offsets: npt.NDArray[np.int64],
        mask: Mask,
        has_mask: npt.NDArray[np.bool_],
        notes: Sequence[Note] = (),
    ) -> None:
        """Take the columns as they are; :func:`harness.dataset.prompts.read_prompts` checks them.

        Args:
            kind: Where the prompts came from.
            path: The file or folder that the user named.
            names: One id a prompt, length n.
            ids: int32 ``[total tokens]``.
            offsets: int64 ``[n + 1]``; prompt i is ``ids[offsets[i]:offsets[i + 1]]``.
            mask: uint8 ``[total tokens]``, ones where the source had no mask.
            has_mask: bool ``[n]``.
            notes: What the user should hear about.
        """
        self.kind: PromptKind = kind
        self.path = path
        self.names = tuple(names)
        self.notes = tuple(notes)
        for column in (ids, offsets, mask, has_mask):
            column.setflags(write=False)
        self._ids, self._offsets, self._mask, self._has_mask = ids, offsets, mask, has_mask
        self.fingerprint = _fingerprint(self.names, ids, offsets, mask, has_mask)

    @property
    def prompts(self) -> Sequence[Prompt]:
        """The prompts, in order."""
        return self

    @property
    def tokens(self) -> int:
        """Tokens of all prompts together."""
        return int(self._ids.size)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """int64 ``[n]``: tokens of each prompt."""
        return np.diff(self._offsets)

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> Prompt: ...
    @overload
    def __getitem__(self, index: slice) -> list[Prompt]: ...
    def __getitem__(self, index: int | slice) -> Prompt | list[Prompt]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        span = slice(int(self._offsets[place]), int(self._offsets[place + 1]))
        mask = self._mask[span] if self._has_mask[place] else None
        return Prompt(self.names[place], place, self._ids[span], mask)

    def effective_mask(self, index: int) -> Mask:
        """Return the mask a trainer gets: the given one, or ones where there was none."""
        return self._mask[int(self._offsets[index]) : int(self._offsets[index + 1])]

    def columns(self) -> tuple[Ids, npt.NDArray[np.int64], Mask]:
        """Return ``(ids, offsets, effective mask)``: the flat columns, for bulk writers."""
        return self._ids, self._offsets, self._mask


def mask_digest(mask: Mask | None) -> str | None:
    """Return ``blake3:<hex>`` over a loss mask's bytes (uint8), or None for no mask."""
    if mask is None:
        return None
    return "blake3:" + blake3(np.ascontiguousarray(mask, dtype=np.uint8).data).hexdigest()


def _fingerprint(
    names: Sequence[str],
    ids: Ids,
    offsets: npt.NDArray[np.int64],
    mask: Mask,
    has_mask: npt.NDArray[np.bool_],
) -> str:
    # Little-endian widths are fixed and the offsets come first, so no two different sets
    # can give the same stream of bytes.
    digest = blake3(b"harness prompts 1\n")
    for column in (
        np.ascontiguousarray(offsets, dtype="<i8"),
        np.ascontiguousarray(ids, dtype="<i4"),
        np.ascontiguousarray(has_mask, dtype=np.uint8),
        np.ascontiguousarray(mask, dtype=np.uint8),
    ):
        digest.update(column.view(np.uint8).data)
    digest.update(json.dumps(list(names), ensure_ascii=True).encode())
    return "blake3:" + digest.hexdigest()
