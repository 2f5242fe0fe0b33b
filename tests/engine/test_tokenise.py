"""Conversations become the ids and masks that the model's template and speculators mean."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import models
from harness.dataset.conversations import (
    Tokenised,
    TokeniseOptions,
    TokeniserHost,
    tokenise,
)
from harness.dataset.prompts import PromptLimits, read_prompts
from harness.errors import UsageError

pytestmark = pytest.mark.engine

Tokenizer = pytest.importorskip("tokenizers", reason="comes with the engine").Tokenizer

PYTHON = Path(sys.executable)
ROOT = Path(__file__).parents[2]
DEMO = ROOT / "fixtures" / "prompts" / "demo_conversations.jsonl"
END = "<|im_end|>"
ANSWER = "<|im_assistant|>assistant<|im_middle|>"

Row = dict[str, Any]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.make("kimi-k2.5-tiny", tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokeniserHost]:
    with TokeniserHost(PYTHON, tmp_path_factory.mktemp("host") / "log") as host:
        yield host


@pytest.fixture(scope="module")
def text_of(model: Path) -> Callable[[list[int]], str]:
    # The library below transformers: a decoder that our code does not go through.
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    return lambda ids: tokenizer.decode(ids, skip_special_tokens=False)


@pytest.fixture
def other_model(model: Path, tmp_path: Path) -> Callable[..., Path]:
    """A copy of the tokenizer, with changes to its configuration."""

    def make(**changes: Any) -> Path:
        copy = tmp_path / "model"
        copy.mkdir()
        for name in ("config.json", "tokenizer.json"):
            shutil.copy(model / name, copy)
        config = json.loads((model / "tokenizer_config.json").read_text())
        config = {k: v for k, v in (config | changes).items() if v is not None}
        (copy / "tokenizer_config.json").write_text(json.dumps(config))
        return copy

    return make


def _conversations(path: Path = DEMO) -> dict[str, list[dict[str, str]]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["id"]: row["conversations"] for row in rows}


def _write(path: Path, *conversations: list[tuple[str, str]], names: str = "role content") -> Path:
    role, content = names.split()
    lines = [
        json.dumps({"id": f"c{n}", "messages": [{role: a, content: b} for a, b in turns]})
        for n, turns in enumerate(conversations)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def _rows(path: Path) -> dict[str, Row]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row for row in rows}


def _masked(row: Row, bit: int) -> list[int]:
    return [t for t, m in zip(row["input_ids"], row["loss_mask"], strict=True) if m == bit]


@pytest.fixture(scope="module")
def demo(host: TokeniserHost, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokenised:
    return host.tokenise(DEMO, model, tmp_path_factory.mktemp("demo") / "prompts.jsonl")


def test_the_installed_speculators_is_used_and_named(demo):
    assert demo.way == "speculators"
    assert "0.9" in demo.way_reason
    assert demo.conversations == 12


def test_every_answer_is_a_row_whose_mask_covers_exactly_that_answer(demo, text_of):
    rows = _rows(demo.path)
    seen = 0
    for id, turns in _conversations().items():
        places = [n for n, turn in enumerate(turns) if turn["role"] == "assistant"]
        for number, place in enumerate(places, start=1):
            row = rows[id if len(places) == 1 else f"{id}#{number}"]
            seen += 1
            assert text_of(_masked(row, 1)) == turns[place]["content"] + END
            context = text_of(_masked(row, 0))
            assert context.endswith(ANSWER)
            for turn in turns[:place]:
                assert turn["content"] + END in context
            # One block of ones at the very end: context never follows the answer.
            assert row["loss_mask"] == sorted(row["loss_mask"])
    assert seen == len(rows) == demo.rows
    assert demo.tokens == sum(len(row["input_ids"]) for row in rows.values())
    assert demo.supervised == sum(sum(row["loss_mask"]) for row in rows.values())


def test_text_that_is_not_ascii_survives(demo, text_of):
    assert "café and théâtre" in text_of(_masked(_rows(demo.path)["accents"], 1))


@pytest.mark.parametrize("max_length", [None, 150])
def test_our_own_rule_gives_the_rows_of_speculators(host, model, tmp_path: Path, max_length):
    odd = _write(
        tmp_path / "odd.jsonl",
        [("assistant", "first without context"), ("human", "q"), ("gpt", "a")],
        [("user", "q"), ("some-model", "answers"), ("user", "and"), ("assistant", "more")],
        [("system", "s"), ("user", "q"), ("assistant", "a"), ("user", "no answer after this")],
        [("user", "q"), ("assistant", "")],
        names="from value",
    )
    for source in (DEMO, odd):
        made = [
            host.tokenise(
                source,
                model,
                tmp_path / f"{method}-{source.name}",
                options=TokeniseOptions(method=method, max_length=max_length),
            )
            for method in ("speculators", "own")
        ]
        assert [one.way for one in made] == ["speculators", "boundary renders"]
        assert made[0].path.read_text() == made[1].path.read_text()
        assert made[0].truncated == made[1].truncated
        assert made[0].turns_without_room == made[1].turns_without_room


@pytest.mark.slow
def test_rows_equal_those_of_speculators_public_function_behind_a_render_server(
    demo, model, tmp_path: Path
):
    # The whole public path of speculators, with a server as vLLM's render endpoint is.
    script = tmp_path / "public.py"
    script.write_text(
        textwrap.dedent(
            """
            import json, sys, threading
            from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
            from datasets import Dataset
            from transformers import AutoTokenizer
            from speculators.data_generation.preprocessing import build_speculator_training_dataset
            model, source, out = sys.argv[1:]
            tokenizer = AutoTokenizer.from_pretrained(model)
            class Render(BaseHTTPRequestHandler):
                def do_POST(self):
                    body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                    ids = tokenizer.apply_chat_template(
                        body["messages"], add_generation_prompt=body["add_generation_prompt"],
                        tokenize=True, return_dict=False)
                    reply = json.dumps({"token_ids": ids[:body["truncate_prompt_tokens"]]}).encode()
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(reply)))
                    self.end_headers()
                    self.wfile.write(reply)
                def log_message(self, *args): pass
            server = ThreadingHTTPServer(("127.0.0.1", 0), Render)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            rows = [json.loads(line) for line in open(source, encoding="utf-8")]
            data = Dataset.from_list([{"conversations": r["conversations"]} for r in rows])
            made = build_speculator_training_dataset(
                data, tokenizer, max_length=4096, num_proc=1,
                render_endpoint=f"http://127.0.0.1:{server.server_port}")
            with open(out, "w") as file:
                for row in made.with_format(None):
                    json.dump([row["input_ids"], row["loss_mask"]], file)
                    file.write("\\n")
            """
        )
    )
    out = tmp_path / "public.jsonl"
    env_free_of_proxies = {"PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1", "HOME": str(tmp_path)}
    done = subprocess.run(
        [PYTHON, script, model, DEMO, out],
        capture_output=True,
        text=True,
        env=env_free_of_proxies,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    public = [json.loads(line) for line in out.read_text().splitlines()]
    assert public == [[row["input_ids"], row["loss_mask"]] for row in _rows(demo.path).values()]


def test_one_row_a_conversation_supervises_every_answer(host, model, text_of, tmp_path: Path):
    made = host.tokenise(
        DEMO, model, tmp_path / "out.jsonl", options=TokeniseOptions(layout="conversation")
    )
    assert made.way == "prefix renders"
    rows = _rows(made.path)
    for id, turns in _conversations().items():
        answers = "".join(t["content"] + END for t in turns if t["role"] == "assistant")
        assert text_of(_masked(rows[id], 1)) == answers
        asked = text_of(_masked(rows[id], 0))
        assert all(t["content"] in asked for t in turns if t["role"] != "assistant")


_MARKED = (
    "{%- for m in messages -%}{%- if m['role'] == 'assistant' -%}<|im_assistant|>assistant"
    "<|im_middle|>{% generation %}{{ m['content'] }}<|im_end|>{% endgeneration %}{%- else -%}"
    "<|im_user|>{{ m['role'] }}<|im_middle|>{{ m['content'] }}<|im_end|>{%- endif -%}"
    "{%- endfor -%}{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|>"
    "{%- endif -%}"
)


def test_generation_marks_of_the_template_give_the_mask(host, other_model, text_of, tmp_path: Path):
    made = host.tokenise(
        DEMO,
        other_model(chat_template=_MARKED),
        tmp_path / "out.jsonl",
        options=TokeniseOptions(layout="conversation"),
    )
    assert made.way == "generation marks"
    rows = _rows(made.path)
    for id, turns in _conversations().items():
        answers = "".join(t["content"] + END for t in turns if t["role"] == "assistant")
        assert text_of(_masked(rows[id], 1)) == answers


# Says more about earlier answers while the last one is open: history is not stable.
_FORGETFUL = (
    "{%- for m in messages -%}<|im_user|>{{ m['role'] }}<|im_middle|>"
    "{%- if m['role'] == 'assistant' and not loop.last -%}[cut]"
    "{%- else -%}{{ m['content'] }}{%- endif -%}<|im_end|>{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_user|>assistant<|im_middle|>{%- endif -%}"
)


def test_a_template_that_rewrites_history_works_by_turn_and_is_refused_by_conversation(
    host, other_model, text_of, tmp_path: Path
):
    source = _write(
        tmp_path / "in.jsonl",
        [("user", "q1"), ("assistant", "a1")],
        [("user", "q1"), ("assistant", "a1"), ("user", "q2"), ("assistant", "a2")],
    )
    forgetful = other_model(chat_template=_FORGETFUL)
    made = host.tokenise(source, forgetful, tmp_path / "turn.jsonl")
    second = _rows(made.path)["c1#2"]
    assert text_of(_masked(second, 1)) == "a2" + END
    assert "[cut]" in text_of(_masked(second, 0))
    out = tmp_path / "conversation.jsonl"
    with pytest.raises(UsageError) as caught:
        host.tokenise(source, forgetful, out, options=TokeniseOptions(layout="conversation"))
    assert caught.value.failure.id == "prompts.template-failed"
    assert caught.value.failure.where == f"{source}:2"
    assert "UnstableTemplate" in caught.value.failure.found
    assert not out.exists()


_STRICT = (
    "{%- for m in messages -%}{%- if m['role'] == 'system' -%}"
    "{{ raise_exception('no system turns here') }}{%- endif -%}"
    "<|im_user|>{{ m['role'] }}<|im_middle|>{{ m['content'] }}<|im_end|>{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_user|>assistant<|im_middle|>{%- endif -%}"
)


@pytest.mark.parametrize("method", ["speculators", "own"])
def test_a_template_error_names_its_line_and_can_be_passed_over(
    host, other_model, tmp_path: Path, method
):
    source = _write(
        tmp_path / "in.jsonl",
        [("user", "q"), ("assistant", "a")],
        [("system", "s"), ("user", "q"), ("assistant", "a")],
        [("user", "q"), ("assistant", "a")],
    )
    strict, out = other_model(chat_template=_STRICT), tmp_path / "out.jsonl"
    with pytest.raises(UsageError) as caught:
        host.tokenise(source, strict, out, options=TokeniseOptions(method=method))
    assert caught.value.failure.id == "prompts.template-failed"
    assert caught.value.failure.where == f"{source}:2"
    assert "no system turns here" in caught.value.failure.found
    assert not list(tmp_path.glob("*.part"))
    assert not list(tmp_path.glob(".*.part"))
    assert not out.exists()
    made = host.tokenise(
        source, strict, out, options=TokeniseOptions(method=method, skip_failed=True)
    )
    assert (made.rows, made.failed) == (2, 1)
    assert [note.id for note in made.notes()] == ["conversations.failed"]
    assert "line 2" in made.explain()


def test_conversations_without_an_answer_are_left_out_counted_and_named(
    host, model, tmp_path: Path
):
    source = _write(
        tmp_path / "in.jsonl",
        [("user", "only a question")],
        [("user", "q"), ("assistant", "a")],
        [("assistant", "an answer to nothing")],
    )
    made = host.tokenise(source, model, tmp_path / "out.jsonl")
    assert (made.conversations, made.rows, made.without_answer) == (3, 1, 2)
    (note,) = made.notes()
    assert note.examples == ("line 1", "line 3")
    only = _write(tmp_path / "only.jsonl", [("user", "only a question")])
    with pytest.raises(UsageError, match=r"prompts\.nothing-to-train-on"):
        host.tokenise(only, model, tmp_path / "none.jsonl")


def test_truncation_is_counted_and_cuts_ids_and_mask_together(host, model, tmp_path: Path):
    source = _write(
        tmp_path / "in.jsonl",
        [("user", "q"), ("assistant", "a" * 100)],
        [("user", "q" * 100), ("assistant", "no room")],
        [("user", "q"), ("assistant", "short")],
    )
    options = TokeniseOptions(max_length=64)
    made = host.tokenise(source, model, tmp_path / "out.jsonl", options=options)
    rows = _rows(made.path)
    assert set(rows) == {"c0", "c2"}
    assert len(rows["c0"]["input_ids"]) == len(rows["c0"]["loss_mask"]) == 64
    assert (made.truncated, made.turns_without_room) == (1, 1)
    assert made.examples["truncated"] == ("c0",)


def test_a_row_of_exactly_the_limit_is_not_called_truncated(host, model, tmp_path: Path):
    source = _write(tmp_path / "in.jsonl", [("user", "q"), ("assistant", "answer")])
    full = host.tokenise(source, model, tmp_path / "full.jsonl")
    options = TokeniseOptions(max_length=full.tokens)
    exact = host.tokenise(source, model, tmp_path / "exact.jsonl", options=options)
    assert exact.truncated == 0
    assert exact.path.read_text() == full.path.read_text()


def test_text_parts_are_joined_and_an_image_part_is_refused(host, model, text_of, tmp_path: Path):
    source = tmp_path / "in.jsonl"
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    answer = {"role": "assistant", "content": "a"}
    source.write_text(json.dumps({"messages": [{"role": "user", "content": parts}, answer]}))
    made = host.tokenise(source, model, tmp_path / "out.jsonl")
    assert "one\ntwo" + END in text_of(_rows(made.path)["line-1"]["input_ids"])
    parts.append({"type": "image", "path": "x.png"})
    source.write_text(json.dumps({"messages": [{"role": "user", "content": parts}, answer]}))
    with pytest.raises(UsageError, match="only text") as caught:
        host.tokenise(
            source, model, tmp_path / "image.jsonl", options=TokeniseOptions(method="own")
        )
    assert caught.value.failure.where == f"{source}:1"


def test_a_broken_line_is_named_and_nothing_is_left_behind(host, model, tmp_path: Path):
    source = tmp_path / "in.jsonl"
    source.write_text(DEMO.read_text() + '{"id": "x", \n')
    out = tmp_path / "out.jsonl"
    with pytest.raises(UsageError) as caught:
        host.tokenise(source, model, out)
    assert caught.value.failure.id == "prompts.broken-line"
    assert caught.value.failure.where == f"{source}:13"
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_a_model_without_a_chat_template_is_refused(host, other_model, tmp_path: Path):
    bare = other_model(chat_template=None)
    with pytest.raises(UsageError, match=r"tokenizer\.no-chat-template"):
        host.tokenise(DEMO, bare, tmp_path / "out.jsonl")
    facts = host.describe(bare)
    assert facts["loads"] is True
    assert facts["chat_template"] is False


def test_a_missing_model_folder_is_refused(host, tmp_path: Path):
    with pytest.raises(UsageError, match=r"tokenizer\.no-folder"):
        host.tokenise(DEMO, tmp_path / "none", tmp_path / "out.jsonl")
    with pytest.raises(UsageError, match=r"model\.no-config"):
        host.describe(tmp_path / "none")


def test_tokenizer_code_of_a_checkpoint_runs_only_when_allowed(host, other_model, tmp_path: Path):
    trap = tmp_path / "code-ran"
    remote = other_model(
        tokenizer_class="OwnTokenizer", auto_map={"AutoTokenizer": ["own.OwnTokenizer", None]}
    )
    # As Kimi's own: a tokenizer.json is not there to fall back on.
    (remote / "tokenizer.json").rename(remote / "vocabulary.json")
    (remote / "own.py").write_text(
        textwrap.dedent(
            f"""
            from pathlib import Path
            from tokenizers import Tokenizer
            from transformers import PreTrainedTokenizerFast
            Path({str(trap)!r}).touch()
            class OwnTokenizer(PreTrainedTokenizerFast):
                vocab_files_names = {{"vocabulary": "vocabulary.json"}}
                def __init__(self, vocabulary, **options):
                    options["tokenizer_object"] = Tokenizer.from_file(vocabulary)
                    super().__init__(**options)
            """
        )
    )
    out = tmp_path / "out.jsonl"
    with pytest.raises(UsageError) as caught:
        host.tokenise(DEMO, remote, out, deadline_s=60)
    assert caught.value.failure.id == "tokenizer.remote-code"
    facts = host.describe(remote, deadline_s=60)
    assert (facts["loads"], facts["needs_remote_code"]) == (False, True)
    assert facts["problem"]["id"] == "tokenizer.remote-code"
    assert not trap.exists()
    options = TokeniseOptions(trust_remote_code=True)
    assert host.tokenise(DEMO, remote, out, options=options).rows == 20
    assert trap.exists()


def test_a_broken_tokenizer_is_a_fact_for_the_doctor_and_an_error_for_tokenising(
    host, other_model, tmp_path: Path
):
    broken = other_model()
    (broken / "tokenizer.json").write_text("{")
    with pytest.raises(UsageError, match=r"tokenizer\.broken"):
        host.tokenise(DEMO, broken, tmp_path / "out.jsonl")
    facts = host.describe(broken)
    assert facts["loads"] is False
    assert facts["problem"]["id"] == "tokenizer.broken"


def test_the_tokenizer_is_described(host, model):
    facts = host.describe(model)
    assert facts["loads"] is True
    assert facts["vocab_size"] == facts["model_vocab_size"] == 512
    assert facts["chat_template"] is True
    assert facts["template_problem"] is None
    assert facts["placeholder_ids"]["media_placeholder_token_id"] == 277
    assert facts["special_ids"]["eos"] == 257
    assert facts["problem"] is None


def test_a_failing_template_is_described(host, other_model):
    facts = host.describe(other_model(chat_template="{{ raise_exception('never') }}"))
    assert "never" in facts["template_problem"]


def test_conversations_are_read_as_prompts(model, tmp_path: Path):
    reports: list[Tokenised] = []
    prompts = read_prompts(
        DEMO,
        limits=PromptLimits(vocab_size=512, max_tokens=4096, forbidden_ids=frozenset({277})),
        tokenise=lambda path: tokenise(
            path, model, PYTHON, tmp_path / "made" / "prompts.jsonl", on_report=reports.append
        ),
    )
    assert prompts.kind == "conversations"
    assert len(prompts) == reports[0].rows == 20
    assert prompts[0].loss_mask is not None
    assert int(prompts[0].loss_mask.sum()) > 0


def test_an_interpreter_without_speculators_falls_back_and_says_why(model, tmp_path: Path):
    # A module of that name that does not import stands for a missing or fragile one.
    broken = tmp_path / "site" / "speculators"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise RuntimeError('made for another torch')\n")
    host = TokeniserHost(PYTHON, tmp_path / "log", env={"PYTHONPATH": str(broken.parent)})
    with host:
        made = host.tokenise(DEMO, model, tmp_path / "out.jsonl")
        assert made.way == "boundary renders"
        assert "made for another torch" in made.way_reason
        assert made.rows == 20
        with pytest.raises(UsageError, match=r"tokenise\.speculators"):
            host.tokenise(
                DEMO,
                model,
                tmp_path / "insist.jsonl",
                options=TokeniseOptions(method="speculators"),
            )
