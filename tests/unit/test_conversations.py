"""Conversations are checked line by line before any tokenizer is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.inside.conversations import Conversation, read_conversations
from harness.inside.wire import OpError

FIXTURE = Path(__file__).parents[2] / "fixtures" / "prompts" / "demo_conversations.jsonl"


def _write(path: Path, *rows: object) -> Path:
    path.write_text("".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in rows))
    return path


def _turns(*roles: str) -> tuple[dict[str, str], ...]:
    return tuple({"role": role, "content": f"said by {role}"} for role in roles)


def test_both_names_of_the_list_and_of_its_fields_are_read(tmp_path: Path):
    path = _write(
        tmp_path / "c.jsonl",
        {"id": "a", "conversations": [{"from": "human", "value": "x"}]},
        "",
        {"messages": [{"role": "user", "content": "x"}]},
    )
    first, second = read_conversations(path)
    assert first.normalised() == second.normalised() == [{"role": "user", "content": "x"}]
    assert (first.id, first.line) == ("a", 1)
    assert (second.id, second.line) == ("line-3", 3)


@pytest.mark.parametrize(
    ("line", "id", "found"),
    [
        ("{", "prompts.broken-line", "Expecting"),
        ("[1]", "prompts.broken-conversation", "a JSON list"),
        ({"text": "x"}, "prompts.broken-conversation", "['text']"),
        ({"messages": "x"}, "prompts.broken-conversation", "messages is a str"),
        ({"messages": ["x"]}, "prompts.broken-conversation", "turn 0 is a str"),
        ({"messages": [{"content": "x"}]}, "prompts.broken-conversation", "turn 0 has no role"),
        ({"messages": [{"role": "user"}]}, "prompts.broken-conversation", "no content"),
        (
            {"messages": [{"role": "user", "content": 3}]},
            "prompts.broken-conversation",
            "content of turn 0 is a int",
        ),
        ({"messages": [], "tools": "{"}, "prompts.broken-conversation", "tools: "),
        ({"messages": [], "tools": {"a": 1}}, "prompts.broken-conversation", "tools: a list"),
    ],
)
def test_a_bad_line_is_refused_with_its_number(tmp_path: Path, line, id, found):
    good = {"messages": [{"role": "user", "content": "x"}]}
    path = _write(tmp_path / "c.jsonl", good, good, line)
    with pytest.raises(OpError) as caught:
        list(read_conversations(path))
    assert caught.value.id == id
    assert caught.value.where == f"{path}:3"
    assert found in caught.value.found


def test_a_missing_file_is_refused(tmp_path: Path):
    with pytest.raises(OpError) as caught:
        list(read_conversations(tmp_path / "none.jsonl"))
    assert caught.value.id == "prompts.missing-file"


def test_an_assistant_turn_without_context_is_no_answer():
    assert Conversation(1, "a", _turns("assistant"), None).answers == 0
    assert Conversation(1, "a", _turns("assistant", "user", "gpt"), None).answers == 1
    assert Conversation(1, "a", _turns("user", "assistant") * 3, None).answers == 3


def test_an_unknown_role_is_the_assistants_and_is_reported():
    conversation = Conversation(1, "a", _turns("user", "some-model"), None)
    assert [turn["role"] for turn in conversation.normalised()] == ["user", "assistant"]
    assert conversation.unknown_roles == {"some-model"}
    assert Conversation(1, "a", _turns("human", "gpt", "tool"), None).unknown_roles == set()


def test_the_shipped_conversations_are_twelve_with_one_to_four_answers():
    conversations = list(read_conversations(FIXTURE))
    assert len(conversations) == len({c.id for c in conversations}) == 12
    assert {c.answers for c in conversations} == {1, 2, 3, 4}
    assert not any(c.unknown_roles for c in conversations)
