"""Conversations in: one JSON object a line, checked before any of it is rendered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.inside.wire import OpError

_FIELDS = ("conversations", "messages")
_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
}


@dataclass(frozen=True)
class Conversation:
    """One conversation of the file.

    Attributes:
        line: Line number, from 1.
        id: The user's name for it, or ``line-<n>``.
        turns: The turns as written.
        tools: Tool descriptions for the template, or None.
    """

    line: int
    id: str
    turns: tuple[dict[str, Any], ...]
    tools: list[Any] | None

    @property
    def unknown_roles(self) -> frozenset[str]:
        """Roles that no one maps; speculators takes such a turn for the assistant's."""
        return frozenset(role for role in map(role_of, self.turns) if role not in _ROLES)

    @property
    def answers(self) -> int:
        """Assistant turns that have a turn before them."""
        return sum(_ROLES.get(role_of(turn), "assistant") == "assistant" for turn in self.turns[1:])

    def normalised(self) -> list[dict[str, Any]]:
        """Return the turns with ``role`` and ``content``, by the rules of speculators 0.9.

        Known names of the user and the assistant are folded; an unknown role is the
        assistant's; reasoning is given under both names that templates use.
        """
        turns = []
        for turn in self.turns:
            plain: dict[str, Any] = {
                "role": _ROLES.get(role_of(turn), "assistant"),
                "content": turn.get("value") or turn.get("content") or "",
            }
            for name in ("tool_calls", "tool_call_id"):
                if turn.get(name):
                    plain[name] = turn[name]
            reasoning = turn.get("thinking") or turn.get("reasoning_content")
            if reasoning:
                plain["thinking"] = plain["reasoning_content"] = reasoning
            turns.append(plain)
        return turns


def role_of(turn: dict[str, Any]) -> str:
    """The role as written, under either of its two names."""
    return str(turn.get("from", turn.get("role", "")))


def read_conversations(path: Path) -> Iterator[Conversation]:
    """Read a JSONL file of conversations; blank lines are passed over.

    Raises:
        OpError: ``prompts.missing-file``, ``prompts.broken-line`` or
            ``prompts.broken-conversation``, the last two with the line number.
    """
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _conversation(path, number, line)
    except OSError as error:
        raise OpError(
            "prompts.missing-file",
            expected="a readable file of conversations",
            found=error.strerror or type(error).__name__,
            where=str(path),
            next="check --prompts",
        ) from error


def _conversation(path: Path, number: int, line: bytes) -> Conversation:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise OpError(
            "prompts.broken-line",
            expected="one JSON object a line",
            found=str(error),
            where=f"{path}:{number}",
            next="repair or drop this line",
        ) from error
    found = _fault(row)
    if found:
        raise OpError(
            "prompts.broken-conversation",
            expected="conversations or messages: a list of turns, each with role (or from) "
            "and content (or value)",
            found=found,
            where=f"{path}:{number}",
            next="repair or drop this line",
        )
    turns = row[next(name for name in _FIELDS if name in row)]
    id = row.get("id")
    return Conversation(
        line=number,
        id=f"line-{number}" if id is None else str(id),
        turns=tuple(turns),
        tools=_tools(row.get("tools")),
    )


def _fault(row: Any) -> str:
    if not isinstance(row, dict):
        return f"a JSON {type(row).__name__}"
    field = next((name for name in _FIELDS if name in row), None)
    if field is None:
        return f"the fields {sorted(row)}"
    turns = row[field]
    if not isinstance(turns, list):
        return f"{field} is a {type(turns).__name__}"
    for place, turn in enumerate(turns):
        if not isinstance(turn, dict):
            return f"turn {place} is a {type(turn).__name__}"
        if not role_of(turn):
            return f"turn {place} has no role"
        content = turn.get("value", turn.get("content"))
        if content is not None and not isinstance(content, (str, list)):
            return f"the content of turn {place} is a {type(content).__name__}"
        if content is None and not turn.get("tool_calls"):
            return f"turn {place} has no content"
    try:
        _tools(row.get("tools"))
    except ValueError as error:
        return f"tools: {error}"
    return ""


def _tools(tools: Any) -> list[Any] | None:
    if isinstance(tools, str):
        tools = json.loads(tools) if tools.strip() else None
    if not tools:
        return None
    if not isinstance(tools, list):
        raise ValueError(f"a list expected, found a {type(tools).__name__}")
    return tools
