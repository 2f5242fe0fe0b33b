"""Prompts in: one reader for every source the harness accepts.

Sources: JSONL with token ids, a Hugging Face dataset folder (what speculators' prepare-data
writes), and JSONL with conversations, which a child process must tokenise first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from harness.dataset import _jsonl
from harness.dataset._prompt_builder import PromptBuilder, bad
from harness.dataset.prompt_set import Note, Prompt, PromptKind, PromptLimits, PromptSet

__all__ = [
    "Note",
    "Prompt",
    "PromptKind",
    "PromptLimits",
    "PromptSet",
    "detect_source",
    "prompts_of",
    "read_prompts",
]

Source = Literal["auto", "jsonl", "arrow", "conversations"]
Tokenise = Callable[[Path], Path]


def read_prompts(
    path: Path | str,
    *,
    limits: PromptLimits,
    source: Source = "auto",
    tokenise: Tokenise | None = None,
) -> PromptSet:
    """Read and check all prompts; the first bad one ends the reading with a clear error.

    Args:
        path: A JSONL file or a dataset folder.
        limits: What the model and the engine accept.
        source: The kind of source; ``auto`` looks at the folder or at the first line.
        tokenise: Turns a file of conversations into a JSONL file of ids and masks and returns
            its path. Needed for conversations only: the work belongs in a child process.

    Returns:
        The prompts in their order, with notes on what was cut and on fields that are unknown.

    Raises:
        UsageError: Ids ``prompts.*``; names the line or row. ``prompts.needs-tokenising`` where
            the source holds conversations and no ``tokenise`` was given.
    """
    path = Path(path)
    kind = detect_source(path) if source == "auto" else source
    builder = PromptBuilder(limits)
    if kind == "arrow":
        from harness.dataset.arrow import add_rows  # pyarrow only where it is needed

        add_rows(path, builder)
    elif kind == "jsonl":
        _jsonl.add_lines(path, builder)
    else:
        tokens = _tokenised(path, tokenise, builder)
        _jsonl.add_lines(tokens, builder)
    return builder.build(kind=kind, path=path)


def prompts_of(
    ids: Sequence[Sequence[int] | npt.NDArray[np.integer[Any]]], *, limits: PromptLimits
) -> PromptSet:
    """Check token ids that are in memory already.

    Args:
        ids: Token ids of each prompt; they are named ``prompt 0``, ``prompt 1`` and so on.
        limits: What the model and the engine accept.

    Raises:
        UsageError: Ids ``prompts.*``; names the prompt.
    """
    builder = PromptBuilder(limits)
    for number, given in enumerate(ids):
        # A list or an array is what a file would give.
        row = given if isinstance(given, np.ndarray) else list(given)
        builder.add(f"prompt {number}", None, row, None)
    return builder.build(kind="jsonl", path=Path("prompts"))


def detect_source(path: Path) -> PromptKind:
    """Return the kind of source behind a path.

    Raises:
        UsageError: Nothing readable is there, or a folder that is no dataset.
    """
    if path.is_dir():
        return _dataset_folder(path)
    return "conversations" if _jsonl.holds_conversations(path) else "jsonl"


def _dataset_folder(path: Path) -> PromptKind:
    if (path / "state.json").is_file():
        return "arrow"
    if (path / "dataset_dict.json").is_file():
        splits = sorted(entry.name for entry in path.iterdir() if entry.is_dir())
        bad(
            "dataset-splits",
            "the folder of one split",
            f"a folder with the splits {splits}",
            str(path),
            f"name one of them: --prompts {path / (splits[0] if splits else 'train')}",
        )
    bad(
        "not-a-dataset",
        "a dataset folder as save_to_disk writes it (with state.json), or a JSONL file",
        "a folder without state.json",
        str(path),
        "name the dataset folder or the JSONL file itself",
    )


def _tokenised(path: Path, tokenise: Tokenise | None, builder: PromptBuilder) -> Path:
    if tokenise is None:
        bad(
            "needs-tokenising",
            "token ids (the field input_ids)",
            "conversations",
            str(path),
            "run `harness extract` with a model that has a tokenizer and a chat template",
        )
    # Before the child starts, which takes seconds.
    _jsonl.watch_conversations(path, builder)
    return tokenise(path)
