"""Prompts from a JSONL file: one object a line with ``input_ids`` and optional fields."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.dataset._encoding import LOOK, refuse_encoded
from harness.dataset._fields import CONVERSATION, LINE
from harness.dataset._prompt_builder import PromptBuilder, bad, show

CONVERSATION_FIELDS = ("conversations", "messages")


def add_lines(path: Path, builder: PromptBuilder) -> None:
    """Read a JSONL file line by line into the builder.

    Blank lines are skipped; an index counts prompts, a line number counts lines.

    Raises:
        UsageError: The file or one of its lines is bad; the error names the line.
    """
    for where, row in _rows(path):
        builder.fields.see(where, row.keys(), LINE)
        if "input_ids" not in row:
            bad(
                "no-input-ids",
                "the field input_ids",
                f"the fields {sorted(row)}",
                where,
                "token ids are what is sent: write input_ids, or give a file whose every line "
                "is a conversation (the field conversations or messages)",
            )
        builder.add(where, row.get("id"), row["input_ids"], row.get("loss_mask"))


def watch_conversations(path: Path, builder: PromptBuilder) -> None:
    """Hold the fields of each conversation to the known ones; a child reads the rest.

    Raises:
        UsageError: The file or one of its lines is bad; the error names the line.
    """
    for where, row in _rows(path):
        builder.fields.see(where, row.keys(), CONVERSATION)


def holds_conversations(path: Path) -> bool:
    """Tell from the first line whether the file holds conversations instead of ids.

    Token ids win: a line with ``input_ids`` is never tokenised again.
    """
    for _, row in _rows(path):
        return "input_ids" not in row and any(field in row for field in CONVERSATION_FIELDS)
    return False


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    number = 0
    # The file is read twice, once to see what it holds: a pipe would lose its first lines.
    if path.exists() and not path.is_file():
        bad(
            "not-a-file",
            "a regular file",
            "a pipe or device",
            str(path),
            "write the prompts to a file first: ... > prompts.jsonl",
        )
    try:
        with path.open("rb") as lines:
            refuse_encoded(path, lines.peek(LOOK)[:LOOK])
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    where = f"{path}:{number}"
                    yield where, _parse(line, where)
    except FileNotFoundError:
        bad("missing-file", "a prompts file", "no such file", str(path), "check --prompts")
    except OSError as error:
        bad(
            "unreadable",
            "a readable prompts file",
            f"{error.strerror or error} after line {number}",
            str(path),
            "check the path, its permissions and its disk",
        )


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line, object_pairs_hook=_no_repeats)
    except UnicodeDecodeError as error:
        found = f"bytes that are not UTF-8 at column {error.start + 1}"
    except json.JSONDecodeError as error:
        found = f"{error.msg} at column {error.colno}: {show(_text(line))}"
    except (ValueError, RecursionError) as error:
        found = f"{error}: {show(_text(line))}"
    else:
        if not isinstance(row, dict):
            bad("not-an-object", "one JSON object a line", show(row), where, "write one object")
        return row
    bad("broken-line", "one JSON object a line", found, where, "repair or drop this line")


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the field {twice!r} twice in one object")
    return row


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace").strip()
