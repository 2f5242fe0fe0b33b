"""`harness plan` from its command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from harness import models
from harness.cli import _plan, app
from tests.unit.checkpoints import TINY

KIMI = ("--profile", "kimi-k2.5", "--tensor-parallel-size", "8")

# The whole command line takes ten times as long to build as the plan to make.
alone = typer.Typer()
alone.command()(_plan.plan)


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(alone, list(arguments))
    assert result.exit_code == code, result.output
    return result.stdout


def report(*arguments: str, code: int = 0) -> dict[str, Any]:
    body = json.loads(run(*arguments, "--json", code=code))
    assert isinstance(body, dict)
    return body


def error(*arguments: str, code: int) -> str:
    return str(report(*arguments, code=code)["error"]["id"])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.make(TINY, tmp_path_factory.mktemp("plan") / "tiny", dtype="bfloat16")


def test_kimi_on_eight_cards_of_96_and_of_141_gb_fits() -> None:
    body = report(*KIMI, "--gpu-memory", "96GB", "--gpu-memory", "141GB")
    assert body["fits"] is True
    assert [card["card"] for card in body["cards"]] == ["rtx-pro-6000", "h200"]
    assert [card["fits"] for card in body["cards"]] == [True, True]
    few, many = (card["cache_tokens"] for card in body["cards"])
    assert 50_000 < few < 65_000
    assert 370_000 < many < 390_000
    assert body["output_bytes_per_token"] == 57_344
    assert round(body["weight_bytes"] / 2**30) == 71
    assert all(check["state"] != "fail" for check in body["checks"])


def test_without_a_card_every_known_one_is_judged_and_one_that_fits_is_enough() -> None:
    body = report(*KIMI)
    assert {card["card"]: card["fits"] for card in body["cards"]} == {
        "h100": False,
        "rtx-pro-6000": True,
        "h200": True,
        "b200": True,
    }
    assert body["fits"] is True
    assert report("--profile", "kimi-k2.5", code=3)["fits"] is False


def test_every_card_that_is_named_must_fit() -> None:
    body = report(*KIMI, "--gpu-memory", "h200", "--gpu-memory", "h100", code=3)
    assert [card["fits"] for card in body["cards"]] == [True, False]
    assert body["cards"][1]["largest"].startswith("routed experts")
    assert body["cards"][1]["most_layers"] == 54
    assert "most_layers" not in body["cards"][0]


def test_every_term_says_where_it_comes_from() -> None:
    body = report(*KIMI)
    terms = [term for group in body["terms"].values() for term in group]
    assert len(terms) > 12
    for term in terms:
        assert term["source"], term
        assert term["confidence"] in ("exact", "measured", "rule of thumb")
    out = run(*KIMI)
    for term in terms:
        assert term["source"] in out.replace("\n", " ")


def test_the_verdict_is_a_line_that_names_card_and_largest_term() -> None:
    out = run(*KIMI, "--gpu-memory", "80GB", code=3)
    assert "H100 80 GB: does not fit" in out
    assert "largest: routed experts, INT4 with scales, 66.45 GiB" in out
    assert "54 layers would fit" in out
    assert "RTX PRO 6000 Blackwell 96 GB: fits" in run(*KIMI, "--gpu-memory", "96GB")


def test_a_size_that_does_not_divide_is_refused() -> None:
    body = report("--profile", "kimi-k2.5", "-tp", "6", code=3)
    assert body["error"]["id"] == "estimate.tensor-parallel"
    assert "1, 2, 4, 8, 16, 32" in body["error"]["expected"]


def test_a_slice_is_the_profile_with_fewer_layers(tmp_path: Path) -> None:
    by_number = report("--profile", "kimi-k2.5", "--num-layers", "6")
    by_name = report("--profile", "kimi-k2.5-slice")
    assert by_number["weight_bytes"] == by_name["weight_bytes"]
    assert by_name["load_seconds"] == 60
    assert "made on the devices" in run("--profile", "kimi-k2.5-slice")
    assert error("--profile", "kimi-k2.5", "--num-layers", "1", code=2) == "estimate.too-few-layers"


def test_a_checkpoint_counts_the_bytes_of_its_files(tiny: Path) -> None:
    body = report("--model", str(tiny), "-tp", "2")
    files = sum(path.stat().st_size for path in tiny.glob("*.safetensors"))
    assert body["page_cache_bytes"] == files
    assert body["load_seconds"] == pytest.approx(60, abs=0.2)


def test_samples_are_counted_from_tokens_or_from_prompts(tiny: Path, tmp_path: Path) -> None:
    body = report(*KIMI, "--tokens", "1000000")
    assert body["disk_bytes"] == pytest.approx(1e6 * 57_344, rel=1e-3)
    assert "57.3" in run(*KIMI, "--tokens", "1000000")
    prompts = tmp_path / "prompts.jsonl"
    rows = [{"id": str(n), "input_ids": [1] * n} for n in (5, 40, 7)]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    body = report("--model", str(tiny), "--prompts", str(prompts))
    assert (body["samples"], body["tokens"]) == (3, 52)
    shorter = report("--model", str(tiny))["device_bytes"]
    assert body["device_bytes"] < shorter  # the longest request is 41 tokens, not 8,192
    both = ("--prompts", str(prompts), "--tokens", "9")
    assert error("--model", str(tiny), *both, code=2) == "plan.tokens-twice"


def test_written_and_captured_depths_differ_where_only_the_canary_needs_the_last() -> None:
    body = report(*KIMI, "--layers", "2,30,58", "--layout", "raw")
    assert body["output_bytes_per_token"] == 3 * 7168 * 2
    assert body["hidden_state_cache_bytes_per_token"] == 4 * 7168 * 2
    assert error(*KIMI, "--layers", "2,62", code=2) == "layers.out-of-range"


def test_a_read_rate_is_given_or_measured_and_said(tmp_path: Path) -> None:
    given = report(*KIMI, "--read-rate", "2GB/s")
    assert given["load_seconds"] == pytest.approx(60 + 595.148 / 2, abs=0.1)
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(16 << 20)
    measured = report(*KIMI, "--measure-read", str(tmp_path))
    assert measured["read_rate"] > 0
    assert "read in" in measured["read_rate_source"]
    default = report(*KIMI)
    assert 20 * 60 <= default["load_seconds"] < 21 * 60 + 60


@pytest.mark.parametrize(
    ("arguments", "id"),
    [
        ((), "plan.which-model"),
        ((*KIMI, "--model", "x"), "plan.which-model"),
        (("--profile", "nobody"), "models.unknown-profile"),
        (("--model", "nowhere"), "models.missing-folder"),
        ((*KIMI, "--gpu-memory", "many"), "estimate.bad-size"),
        ((*KIMI, "--read-rate", "fast"), "estimate.bad-size"),
        ((*KIMI, "--capture", "auto"), "plan.unknown-capture"),
        ((*KIMI, "--dtype", "float16"), "estimate.dtype"),
    ],
)
def test_a_question_that_cannot_be_right_is_a_usage_error(
    arguments: tuple[str, ...], id: str
) -> None:
    assert error(*arguments, code=2) == id


def test_help_keeps_the_plan_apart_from_the_dry_run() -> None:
    result = CliRunner().invoke(app, ["plan", "--help"])
    assert result.exit_code == 0
    out = " ".join(result.stdout.split())
    assert "harness extract --dry-run" in out
    assert "96GB" in out
