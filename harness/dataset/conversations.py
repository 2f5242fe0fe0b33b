"""Conversations to token ids: the parent's side. The work is done in a child process.

The tokenizer and the chat template are the model's own, so the child runs the interpreter
that has transformers (and, where installed, speculators). What it makes is an ordinary
prompts file, which the ordinary reader reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from harness.dataset.prompt_set import Note
from harness.host import Host, HostSpec
from harness.host.usage import usage_errors

_FORESEEN = ("prompts.", "tokenizer.", "tokenise.", "model.")


@dataclass(frozen=True)
class TokeniseOptions:
    """How conversations become rows.

    Attributes:
        layout: ``turn`` makes one row for every assistant turn with context, holding the
            conversation up to and with it and supervising that turn alone, as speculators
            0.9 does; such a row's id is the conversation's, with ``#<answer>`` when there are
            several. ``conversation`` makes one row a conversation, every answer supervised.
        method: ``auto`` uses the installed speculators' own preprocessing where it has one,
            else the same rule written here; ``speculators`` and ``own`` insist.
        max_length: Cut rows to this many tokens; None cuts nothing.
        trust_remote_code: Let the checkpoint's own tokenizer code run.
        skip_failed: Pass over conversations that the template refuses instead of stopping.
    """

    layout: Literal["turn", "conversation"] = "turn"
    method: Literal["auto", "speculators", "own"] = "auto"
    max_length: int | None = None
    trust_remote_code: bool = False
    skip_failed: bool = False


@dataclass(frozen=True)
class Tokenised:
    """What became of the conversations.

    Attributes:
        path: The prompts file.
        way: How the rows were made: ``speculators``, ``boundary renders``, ``prefix renders``
            or ``generation marks``.
        way_reason: Why this way.
        conversations: Conversations read.
        rows: Rows written.
        tokens: Tokens in them.
        supervised: Tokens with loss mask 1.
        truncated: Rows that were cut to the limit.
        turns_without_room: Assistant turns left out since their context alone fills the limit.
        without_answer: Conversations left out since no assistant turn has context.
        failed: Conversations left out since the template refused them.
        unknown_roles: Roles that were taken for the assistant's, as speculators takes them.
        examples: First few ids or lines, by the name of the count.
    """

    path: Path
    way: str
    way_reason: str
    conversations: int
    rows: int
    tokens: int
    supervised: int
    truncated: int
    turns_without_room: int
    without_answer: int
    failed: int
    unknown_roles: tuple[str, ...]
    examples: dict[str, tuple[str, ...]]

    def notes(self) -> tuple[Note, ...]:
        """Return what the user should hear about."""
        said = (
            ("truncated", self.truncated, "rows were cut to the length limit"),
            (
                "turns_without_room",
                self.turns_without_room,
                "assistant turns left out: their context alone fills the length limit",
            ),
            (
                "without_answer",
                self.without_answer,
                "conversations left out: no assistant turn with context",
            ),
            ("failed", self.failed, "conversations left out: the chat template refused them"),
            (
                "unknown_roles",
                len(self.unknown_roles),
                "unknown roles were taken for the assistant's",
            ),
        )
        return tuple(
            Note(
                id=f"conversations.{name.replace('_', '-')}",
                message=f"{count} {message}",
                count=count,
                examples=self.examples.get(name, ()),
            )
            for name, count, message in said
            if count
        )

    def explain(self) -> str:
        """Say in a few lines what was made, how, and what was left out."""
        lines = [
            f"{self.conversations} conversations -> {self.rows} rows, {self.tokens} tokens, "
            f"{self.supervised} supervised; by {self.way} ({self.way_reason})"
        ]
        for note in self.notes():
            examples = f" ({', '.join(note.examples)})" if note.examples else ""
            lines.append(f"  {note.message}{examples}")
        return "\n".join(lines)


class TokeniserHost:
    """A child that has the model's tokenizer libraries; a context manager.

    Args:
        python: Interpreter that has transformers.
        log: File for what the child prints.
        env: Added to the child's environment.
    """

    def __init__(self, python: Path, log: Path, env: Mapping[str, str] | None = None) -> None:
        self._host = Host(
            HostSpec(
                python=python,
                module="harness.inside.tokenise",
                env={"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", **(env or {})},
                log=log,
            )
        )

    def __enter__(self) -> TokeniserHost:
        self._host.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._host.__exit__(kind, value, trace)

    def tokenise(
        self,
        path: Path,
        model: Path,
        out: Path,
        *,
        options: TokeniseOptions | None = None,
        deadline_s: float = 3600.0,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Tokenised:
        """Tokenise a file of conversations with a model's own chat template.

        Args:
            path: JSONL; each line has ``conversations`` or ``messages``: a list of turns with
                ``role`` (or ``from``) and ``content`` (or ``value``); ``id`` and ``tools`` are
                optional.
            model: Checkpoint folder.
            out: Prompts file to write; it appears only when complete.
            options: How conversations become rows.
            deadline_s: Seconds for the whole file.
            on_progress: Called now and then with conversations read and rows written.

        Returns:
            The outcome; its ``path`` is ``out``.

        Raises:
            UsageError: ``prompts.*`` with the line number, ``tokenizer.*``, ``tokenise.*``.
            EngineFailed: The child died, hung or failed.
        """
        out = out.absolute()
        out.parent.mkdir(parents=True, exist_ok=True)

        def on_event(event: dict[str, Any]) -> None:
            if on_progress is not None and event["event"] == "tokenised":
                on_progress(event["conversations"], event["rows"])

        paths = {"path": path, "model": model, "out": out}
        with usage_errors(*_FORESEEN):
            result = self._host.call(
                "tokenise",
                {name: str(value.absolute()) for name, value in paths.items()}
                | asdict(options or TokeniseOptions()),
                deadline_s=deadline_s,
                on_event=on_event,
            )
        return _report(out, result)

    def describe(
        self, model: Path, *, trust_remote_code: bool = False, deadline_s: float = 120.0
    ) -> dict[str, Any]:
        """Return facts on a checkpoint's tokenizer; :mod:`harness.inside.describe` lists them.

        Raises:
            UsageError: ``model.no-config`` or ``model.broken-config``.
            EngineFailed: The child died, hung or failed.
        """
        with usage_errors("model."):
            return self._host.call(
                "describe",
                {"model": str(model.absolute()), "trust_remote_code": trust_remote_code},
                deadline_s=deadline_s,
            )


def tokenise(
    path: Path,
    model: Path,
    python: Path,
    out: Path,
    *,
    options: TokeniseOptions | None = None,
    deadline_s: float = 3600.0,
    on_progress: Callable[[int, int], None] | None = None,
    on_report: Callable[[Tokenised], None] | None = None,
) -> Path:
    """Tokenise one file in a child of its own; see :meth:`TokeniserHost.tokenise`.

    Args:
        path: JSONL of conversations.
        model: Checkpoint folder.
        python: Interpreter that has transformers.
        out: Prompts file to write. The child's log, ``<out>.log``, lies beside it.
        options: How conversations become rows.
        deadline_s: Seconds for the whole file.
        on_progress: Called now and then with conversations read and rows written.
        on_report: Called once with the outcome.

    Returns:
        ``out``, for :func:`harness.dataset.prompts.read_prompts`.

    Raises:
        UsageError: ``prompts.*`` with the line number, ``tokenizer.*``, ``tokenise.*``.
        EngineFailed: The child died, hung or failed.
    """
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    with TokeniserHost(python, out.with_name(f"{out.name}.log")) as host:
        report = host.tokenise(
            path, model, out, options=options, deadline_s=deadline_s, on_progress=on_progress
        )
    if on_report is not None:
        on_report(report)
    return report.path


def _report(path: Path, result: dict[str, Any]) -> Tokenised:
    names = ("conversations", "rows", "tokens", "supervised", "truncated", "turns_without_room")
    return Tokenised(
        path=path,
        way=result["way"],
        way_reason=result["way_reason"],
        **{name: result[name] for name in names},
        without_answer=result["without_answer"]["count"],
        failed=result["failed"]["count"],
        unknown_roles=tuple(result["unknown_roles"]),
        examples={
            "without_answer": tuple(f"line {n}" for n in result["without_answer"]["lines"]),
            "failed": tuple(
                f"line {entry['line']}: {entry['error']}" for entry in result["failed"]["entries"]
            ),
            "unknown_roles": tuple(result["unknown_roles"]),
            "truncated": tuple(result["truncated_ids"]),
        },
    )
