"""The tokenising child: conversations to token ids. ``python -m harness.inside.tokenise``.

Ops: ``tokenise`` (a file of conversations to a file of ids and loss masks) and ``describe``
(what a checkpoint's tokenizer is, for ``harness doctor``). Both read the model's own
tokenizer and template, so they run apart from the parent, which imports no transformers.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from harness.inside.chat import Renderer, close_stdin, first_line, load_tokenizer
from harness.inside.conversations import Conversation, read_conversations
from harness.inside.describe import describe
from harness.inside.turnrows import (
    UNLIMITED,
    Row,
    RowMaker,
    boundary_rows,
    conversation_rows,
    speculators_rows,
    speculators_version,
)
from harness.inside.wire import Emit, OpError, serve

LAYOUTS = ("turn", "conversation")
METHODS = ("auto", "speculators", "own")

_PROGRESS_S = 2.0
_EXAMPLES = 5


@dataclass
class _Tally:
    """What happened to the conversations of one file."""

    conversations: int = 0
    rows: int = 0
    tokens: int = 0
    supervised: int = 0
    turns_without_room: int = 0
    truncated: list[str] = field(default_factory=list)
    without_answer: list[int] = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)
    unknown_roles: set[str] = field(default_factory=set)


def tokenise(params: dict[str, Any], emit: Emit) -> dict[str, Any]:
    """Write one line of ``id``, ``input_ids``, ``loss_mask`` for every row.

    Params:
        model: Checkpoint folder whose tokenizer and chat template are used.
        path: JSONL file of conversations.
        out: JSONL file to write; it appears only when complete.
        max_length: Cut rows to this many tokens; no cut when missing or null.
        layout: ``turn`` (one row an assistant turn, as speculators 0.9) or ``conversation``.
        method: ``auto`` (speculators where it can, else own), ``speculators`` or ``own``.
        trust_remote_code: Let the checkpoint's own tokenizer code run; false when missing.
        skip_failed: Pass over conversations that the template refuses, as speculators does.

    Returns:
        ``way`` and the counts; see docs of the parent side for each.

    Raises:
        OpError: ``tokenizer.*``, ``prompts.*``; the latter name the line.
    """
    started = time.monotonic()
    source, out = Path(params["path"]), Path(params["out"])
    layout = _choice("layout", params.get("layout", "turn"), LAYOUTS)
    method = _choice("method", params.get("method", "auto"), METHODS)
    limit = params.get("max_length") or UNLIMITED
    trust = bool(params.get("trust_remote_code", False))
    tokenizer = load_tokenizer(Path(params["model"]), trust_remote_code=trust)
    if not getattr(tokenizer, "chat_template", None):
        raise OpError(
            "tokenizer.no-chat-template",
            expected="a chat template beside the tokenizer",
            found="none",
            where=str(params["model"]),
            next="add chat_template.jinja to the checkpoint, or give prompts as token ids",
        )
    maker, way, reason = _maker(Renderer(tokenizer), layout, method)
    loaded = time.monotonic()
    tally = _Tally()
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8") as lines:
            for conversation in _with_progress(read_conversations(source), tally, emit):
                _write(conversation, maker, limit, lines, tally)
            _judge(tally, source, skip_failed=bool(params.get("skip_failed", False)))
            lines.flush()
            os.fsync(lines.fileno())
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)
    return {
        "way": way,
        "way_reason": reason,
        "layout": layout,
        "speculators": speculators_version(),
        "conversations": tally.conversations,
        "rows": tally.rows,
        "tokens": tally.tokens,
        "supervised": tally.supervised,
        "truncated": len(tally.truncated),
        "truncated_ids": tally.truncated[:_EXAMPLES],
        "turns_without_room": tally.turns_without_room,
        "without_answer": {
            "count": len(tally.without_answer),
            "lines": tally.without_answer[:_EXAMPLES],
        },
        "failed": {"count": len(tally.failed), "entries": tally.failed[:_EXAMPLES]},
        "unknown_roles": sorted(tally.unknown_roles),
        "load_seconds": loaded - started,
        "seconds": time.monotonic() - loaded,
    }


def _choice(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise OpError(
            f"tokenise.{name}",
            expected=f"one of {', '.join(allowed)}",
            found=repr(value),
            where="op tokenise",
            next=f"choose another {name}",
        )
    return str(value)


def _maker(renderer: Renderer, layout: str, method: str) -> tuple[RowMaker, str, str]:
    """Choose how rows are made: the maker, its name and why this one."""
    if layout == "conversation":
        if method == "speculators":
            raise OpError(
                "tokenise.method",
                expected="method own for one row a conversation",
                found="method speculators, which makes one row a turn",
                where="op tokenise",
                next="choose layout turn or method own",
            )
        marks = renderer.marks_generations
        way = "generation marks" if marks else "prefix renders"
        why = "of the chat template" if marks else "the chat template has no generation marks"
        return conversation_rows(renderer), way, why
    if method == "own":
        return boundary_rows(renderer), "boundary renders", "as asked"
    try:
        maker = speculators_rows(renderer)
    except ImportError as error:
        if method == "speculators":
            raise OpError(
                "tokenise.speculators",
                expected="a speculators release with boundary rows (0.9)",
                found=str(error),
                where=sys.executable,
                next="install speculators 0.9, or choose method own",
            ) from error
        return boundary_rows(renderer), "boundary renders", str(error)
    return maker, "speculators", f"speculators {speculators_version()} is installed"


def _with_progress(
    conversations: Iterator[Conversation], tally: _Tally, emit: Emit
) -> Iterator[Conversation]:
    told = time.monotonic()
    for conversation in conversations:
        tally.conversations += 1
        yield conversation
        if time.monotonic() - told > _PROGRESS_S:
            told = time.monotonic()
            emit("tokenised", conversations=tally.conversations, rows=tally.rows)


def _write(
    conversation: Conversation, maker: RowMaker, limit: int, lines: TextIO, tally: _Tally
) -> None:
    tally.unknown_roles |= conversation.unknown_roles
    if not conversation.answers:
        tally.without_answer.append(conversation.line)
        return
    try:
        rows = maker(conversation, limit)
    # Templates raise arbitrary types; the line is what the user needs.
    except Exception as error:
        found = f"{type(error).__name__}: {first_line(error)}"
        tally.failed.append({"line": conversation.line, "id": conversation.id, "error": found})
        return
    kept = [row for row in rows if any(row.loss_mask)]
    wanted = conversation.answers if not any(row.answer == 0 for row in rows) else len(rows)
    tally.turns_without_room += wanted - len(kept)
    for row in kept:
        tally.rows += 1
        tally.tokens += len(row.input_ids)
        tally.supervised += sum(row.loss_mask)
        id = _row_id(conversation, row)
        if row.truncated:
            tally.truncated.append(id)
        line = {"id": id, "input_ids": row.input_ids, "loss_mask": row.loss_mask}
        json.dump(line, lines, separators=(",", ":"))
        lines.write("\n")


def _row_id(conversation: Conversation, row: Row) -> str:
    """The conversation's own id; with the answer's number where it has several answers."""
    if row.answer == 0 or conversation.answers == 1:
        return conversation.id
    return f"{conversation.id}#{row.answer}"


def _judge(tally: _Tally, source: Path, *, skip_failed: bool) -> None:
    if tally.failed and not skip_failed:
        first = tally.failed[0]
        raise OpError(
            "prompts.template-failed",
            expected="conversations that the chat template of the model accepts",
            found=f"{len(tally.failed)} of {tally.conversations} refused, the first with "
            f"{first['error']}",
            where=f"{source}:{first['line']}",
            next="repair or drop these lines, or pass over them (skip_failed)",
        )
    if not tally.rows:
        raise OpError(
            "prompts.nothing-to-train-on",
            expected="one assistant turn with context, or more",
            found=f"none in {tally.conversations} conversations",
            where=str(source),
            next="check the roles of the turns, and the length limit",
        )


def main() -> None:
    """Serve the ops until the parent hangs up."""
    close_stdin()
    serve({"tokenise": tokenise, "describe": describe})


if __name__ == "__main__":
    main()
