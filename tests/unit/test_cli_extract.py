"""`harness extract` from its command line, with an engine of arithmetic behind the wire."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness import models
from harness.cli import app
from tests.unit.interpreters import StandIn

MODEL_LEN = "65"
PLACEHOLDER_LINE = "placeholder"


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "model"
    models.make("kimi-k2.5-tiny", folder)
    return folder


@pytest.fixture
def stand_in(tmp_path: Path) -> StandIn:
    return StandIn(tmp_path / "python")


def _answer(stdout: str) -> dict[str, Any]:
    lines = stdout.splitlines()
    assert len(lines) <= 1, stdout
    answer: dict[str, Any] = json.loads(lines[0]) if lines else {}
    return answer


class Cli:
    def __init__(self, folder: Path, model: Path, stand_in: StandIn) -> None:
        self.out, self.model, self.stand_in = folder / "out", model, stand_in
        self.prompts = folder / "prompts.jsonl"
        self.write([{"id": f"p{n}", "input_ids": list(range(1, n + 2))} for n in range(12)])

    def write(self, rows: list[Any]) -> None:
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        self.prompts.write_text("\n".join(lines) + "\n")

    def command(self, *more: str) -> list[str]:
        known = {
            "--model": str(self.model),
            "--prompts": str(self.prompts),
            "--out": str(self.out),
            "--layers": "1,3",
            "--dtype": "float32",
            "--max-model-len": MODEL_LEN,
            "--python": str(self.stand_in.python),
        }
        given = [part for pair in known.items() if pair[0] not in more for part in pair]
        return [sys.executable, "-m", "harness", "extract", *given, "--json", *more]

    def __call__(self, *more: str) -> tuple[int, dict[str, Any], str]:
        done = subprocess.run(
            self.command(*more),
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        return done.returncode, _answer(done.stdout), done.stderr

    def here(self, *more: str) -> tuple[int, dict[str, Any], str]:
        """Run in this process, for what ends before an engine: an import less, which is most."""
        done = CliRunner().invoke(app, self.command(*more)[3:])
        return done.exit_code, _answer(done.stdout), done.stderr

    def refused(self, code: int, id: str, *more: str) -> dict[str, str]:
        """Run; expect this exit code and error, no engine, and nothing new on disk."""
        before = sorted(self.out.parent.iterdir())
        found, body, errors = self.here(*more)
        assert (found, body.get("error", {}).get("id")) == (code, id), errors
        assert sorted(self.out.parent.iterdir()) == before, "something was left behind"
        assert not self.stand_in.loads, "an engine was started"
        error: dict[str, str] = body["error"]
        assert all(error[field] for field in ("expected", "found", "where", "next"))
        assert error["found"] in " ".join(errors.split()) or error["found"] in errors
        return error


@pytest.fixture
def cli(tmp_path: Path, checkpoint: Path, stand_in: StandIn) -> Cli:
    return Cli(tmp_path, checkpoint, stand_in)


def test_a_run_writes_every_sample_and_says_so_in_one_object(cli: Cli) -> None:
    code, result, errors = cli("--spot-check-every", "4")
    assert code == 0, errors
    assert set(result) >= {"out", "samples", "tokens", "seconds", "tokens_per_s", "capture"}
    assert (result["samples"], result["tokens"], result["checked"]) == (12, 78, 3)
    names = {path.name for path in cli.out.glob("hs_*.safetensors")}
    assert names == {f"hs_{n}.safetensors" for n in range(12)}
    assert json.loads((cli.out / "run.json").read_text())["state"] == "complete"


def test_a_second_run_starts_no_engine(cli: Cli) -> None:
    assert cli()[0] == 0
    code, result, _ = cli()
    assert (code, result["kept"], result["samples"]) == (0, 12, 12)
    assert cli.stand_in.loads == 1


def test_a_lost_sample_is_made_again_and_only_that_one(cli: Cli) -> None:
    assert cli()[0] == 0
    kept = (cli.out / "hs_4.safetensors").stat().st_mtime_ns
    (cli.out / "hs_7.safetensors").unlink()
    code, result, _ = cli()
    assert (code, result["kept"], result["samples"]) == (0, 11, 12)
    assert (cli.out / "hs_4.safetensors").stat().st_mtime_ns == kept


def test_another_run_into_the_folder_is_refused(cli: Cli) -> None:
    assert cli()[0] == 0
    others = (("--layers", "1,4"), ("--layout", "raw"), ("--max-model-len", "7", "--truncate"))
    for more in others:
        code, body, _ = cli.here(*more)
        assert (code, body["error"]["id"]) == (3, "dataset.other-run"), more
    assert len(list(cli.out.glob("hs_*.safetensors"))) == 12
    assert cli.stand_in.loads == 1


def test_dry_run_starts_nothing_and_leaves_nothing(cli: Cli) -> None:
    code, body, errors = cli.here("--dry-run")
    assert code == 0, errors
    assert body["layers"]["depths"] == [1, 3, 6]
    assert not cli.stand_in.loads
    assert not cli.out.exists()


def test_a_failing_canary_writes_nothing(cli: Cli) -> None:
    cli.stand_in.behave(canary="wrong")
    code, body, _ = cli()
    assert (code, body["error"]["id"]) == (1, "canary.failed")
    assert not list(cli.out.glob("hs_*"))
    assert not list((cli.out / ".spool").glob("*.safetensors"))


def test_a_wrong_sample_is_not_published(cli: Cli) -> None:
    cli.stand_in.behave(extract="wrong")
    code, body, _ = cli()
    assert (code, body["error"]["id"]) == (1, "extract.sample-refused")
    assert not list(cli.out.glob("hs_*"))


def test_a_dying_engine_is_exit_code_5_and_a_rerun_goes_on(cli: Cli) -> None:
    cli.stand_in.behave(extract="die")
    code, body, errors = cli()
    assert code == 5, errors
    assert body["error"]["id"] == "host.engine-died"
    assert "SIGABRT" in body["error"]["found"]
    run = json.loads((cli.out / "run.json").read_text())
    assert run["state"] == "failed"
    assert run["reason"].startswith("host.engine-died: ")
    cli.stand_in.behave()
    assert cli()[0] == 0


BAD_PROMPTS: list[tuple[str, list[Any], str]] = [
    ("prompts.broken-line", [{"input_ids": [1]}, '{"input_ids": [1, 2'], "2"),
    ("prompts.unknown-token", [{"input_ids": [1]}, {"input_ids": [5, 512]}], "2"),
    ("prompts.empty", [{"input_ids": []}], "1"),
    ("prompts.too-long", [{"input_ids": [7] * 65}], "1"),
    ("prompts.misspelt", [{"input_ids": [1]}, {"input_ids": [1], "loss_masks": [1]}], "2"),
    ("prompts.loss-mask", [{"input_ids": [1, 2], "loss_mask": [1]}], "1"),
    (PLACEHOLDER_LINE, [{"input_ids": [1, -1]}], "1"),
]


@pytest.mark.parametrize(("id", "rows", "line"), BAD_PROMPTS, ids=lambda value: str(value)[:30])
def test_bad_prompts_name_their_line_before_any_engine(
    cli: Cli, id: str, rows: list[Any], line: str
) -> None:
    if id == PLACEHOLDER_LINE:
        rows = [{"input_ids": [1, models.read(cli.model).media_placeholder_id]}]
    cli.write(rows)
    code, body, errors = cli.here()
    assert code == 2, errors
    assert body["error"]["id"].startswith("prompts."), body
    assert line in body["error"]["where"]
    assert not cli.stand_in.loads
    assert not cli.out.exists()


def test_truncate_accepts_a_long_prompt(cli: Cli) -> None:
    cli.write([{"id": "long", "input_ids": [7] * 200}])
    code, result, errors = cli("--truncate")
    assert code == 0, errors
    assert result["tokens"] == 64
    assert "long" in errors


def test_a_missing_model_is_refused(cli: Cli) -> None:
    cli.refused(2, "models.missing-folder", "--model", str(cli.model / "nowhere"))


def test_a_config_without_layers_is_refused(cli: Cli, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    shutil.copytree(cli.model, bad)
    config = json.loads((bad / "config.json").read_text())
    del config["text_config"]["num_hidden_layers"]
    (bad / "config.json").write_text(json.dumps(config))
    assert (
        "layers" in cli.refused(2, "models.config-without-layers", "--model", str(bad))["expected"]
    )


@pytest.mark.parametrize(
    ("layers", "id"),
    [
        ("1,1", "layers.duplicate"),
        ("-1", "layers.negative"),
        ("1,7", "layers.out-of-range"),
        ("one", "layers.unknown-preset"),
    ],
)
def test_bad_layers_are_refused_before_any_engine(cli: Cli, layers: str, id: str) -> None:
    cli.refused(2, id, "--layers", layers)


def test_depth_0_is_refused_for_native_capture_of_deepseek(cli: Cli) -> None:
    code, body, _ = cli.here("--layers", "0,3", "--capture", "native")
    assert (code, body["error"]["id"].split(".")[0]) == (3, "capture")
    assert not cli.stand_in.loads


def test_what_native_capture_cannot_do_goes_to_the_patched_one_and_the_dry_run_says_why(
    cli: Cli,
) -> None:
    code, body, _ = cli.here("--layers", "0,3", "--dry-run")
    assert code == 0
    assert body["capture"]["name"] == "patched"
    assert "depth 0" in body["capture"]["why"]
    assert body["identity"]["capture"] == "patched"


def test_an_engine_that_runs_code_of_the_checkpoint_wants_leave_for_it(cli: Cli) -> None:
    cli.stand_in.answer(language_model_only=False)
    cli.refused(3, "extract.remote-code")
    code, body, _ = cli.here("--dry-run", "--trust-remote-code")
    assert code == 0
    assert body["recipe"]["engine_args"]["trust_remote_code"] is True


def test_an_unknown_capture_is_refused_with_the_known_ones(cli: Cli) -> None:
    failure = cli.refused(2, "extract.unknown-capture", "--capture", "telepathy")
    assert failure["expected"] == "auto, native or patched"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_engine_and_keeps_whole_samples(
    cli: Cli, number: signal.Signals
) -> None:
    cli.stand_in.behave(extract="hang")
    process = subprocess.Popen(
        cli.command(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    _wait_for(lambda: cli.stand_in.loads == 1)
    time.sleep(1.0)
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert "interrupted" in errors
    assert cli.stand_in.running() == []
    assert json.loads((cli.out / "run.json").read_text())["state"] == "interrupted"


def _wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it did not come to that in 30 s"
        time.sleep(0.05)


def test_prompts_from_a_pipe_are_refused_not_half_read(cli: Cli, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    cli.refused(2, "prompts.not-a-file", "--prompts", str(pipe))


def test_a_cut_shard_is_refused_before_any_engine(cli: Cli, tmp_path: Path) -> None:
    bad = tmp_path / "cut"
    shutil.copytree(cli.model, bad)
    shard = max(bad.glob("*.safetensors"))
    with shard.open("rb+") as file:
        file.truncate(shard.stat().st_size - 100)
    cli.refused(1, "models.cut-shard", "--model", str(bad))


def test_a_model_path_that_vllm_takes_for_a_pattern_is_refused(cli: Cli, tmp_path: Path) -> None:
    odd = tmp_path / "sp ace [x]"
    shutil.copytree(cli.model, odd)
    cli.refused(3, "model.path-is-a-pattern", "--model", str(odd))


def test_a_length_at_which_the_canary_could_compare_nothing_is_refused(cli: Cli) -> None:
    cli.refused(2, "extract.max-model-len", "--max-model-len", "2", "--truncate")


def test_dry_run_refuses_the_folder_that_the_run_would_refuse(cli: Cli) -> None:
    cli.out.mkdir()
    (cli.out / "mine.txt").write_text("mine")
    error = cli.refused(3, "dataset.foreign-folder", "--dry-run")
    assert "rm -r" not in error["next"]


def test_ids_that_look_like_markup_are_printed_as_they_are(cli: Cli) -> None:
    cli.write([{"id": "[/red]", "input_ids": [1, 2, 3], "loss_mask": [0, 0, 0]}])
    code, _, errors = cli.here("--dry-run")
    assert code == 0, errors
    assert "[/red]" in errors


def test_an_unknown_field_is_said_once_on_stderr(cli: Cli) -> None:
    cli.write([{"input_ids": [n], "source": "web"} for n in range(1, 9)])
    code, body, errors = cli.here("--dry-run")
    assert code == 0, errors
    (line,) = [line for line in errors.splitlines() if line.startswith("note: ")]
    assert f"8: first at {cli.prompts}:1" in line
    (note,) = body["notes"]
    assert (note["count"], "'source'" in note["message"]) == (8, True)
    assert str(cli.prompts) in note["examples"][0]


def test_a_dtype_that_there_is_not_is_a_usage_error(cli: Cli) -> None:
    cli.refused(2, "recipe.dtype", "--dtype", "foo", "--dry-run")


def test_prompts_of_one_token_are_not_counted_as_checked(cli: Cli) -> None:
    cli.write([{"id": str(n), "input_ids": [n]} for n in range(5)])
    code, result, errors = cli("--spot-check-every", "1")
    assert code == 0, errors
    assert (result["samples"], result["checked"]) == (5, 0)


def test_a_resume_with_other_weights_is_refused(cli: Cli) -> None:
    assert cli()[0] == 0
    (cli.out / "hs_7.safetensors").unlink()
    cli.stand_in.behave(extract="other")
    code, body, _ = cli()
    assert (code, body["error"]["id"]) == (3, "dataset.other-model")
    assert not (cli.out / "hs_7.safetensors").exists()
    cli.stand_in.behave()
    code, result, errors = cli()
    assert (code, result["kept"], result["samples"]) == (0, 11, 12), errors


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--max-num-batched-tokens", "0"),
        ("--gpu-memory-utilization", "1.5"),
        ("--gpu-memory-utilization", "0"),
    ],
)
def test_number_that_no_engine_takes_is_a_usage_error(option: str, value: str) -> None:
    words = ["extract", "--model", "m", "--prompts", "p", "--out", "o", option, value]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert f"Invalid value for '{option}'" in result.stderr
