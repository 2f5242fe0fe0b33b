"""``harness patches list`` and ``check``, and what they say of an environment."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.cli import app
from harness.errors import NotComparable
from harness.patches import PATCHES, Environment, Status, _environment, of_python
from harness.seams import recorded
from tests.unit.patches.contract import GONE, with_entry


def said(*words: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, ["patches", *words, "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_list_gives_every_patch_in_the_order_of_its_fault() -> None:
    listed = said("list")["patches"]
    assert [one["id"] for one in listed] == [patch.id for patch in PATCHES]
    assert {"targets", "seam", "fault", "retire_when", "upstream"} <= set(listed[0])
    text = CliRunner().invoke(app, ["patches", "list"])
    assert text.exit_code == 0
    assert "two-phase" in text.stdout


def test_check_of_a_recorded_release_says_state_and_reason() -> None:
    body = said("check", "--release", "0.16.0")
    assert body["vllm"] == "0.16.0"
    assert body["patches"]["scheduler-config"] == {
        "state": "needed",
        "reason": "is_encoder_decoder is required",
    }
    assert body["patches"]["request-arguments"]["state"] == "obsolete"
    text = CliRunner().invoke(app, ["patches", "check", "--release", "0.16.0"])
    assert "obsolete" in text.stdout


def test_check_of_a_release_that_was_never_recorded_is_not_comparable() -> None:
    assert said("check", "--release", "0.10.0", code=4)["error"]["id"] == "seams.no-record"


def test_check_fails_when_a_patch_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    surface = with_entry(recorded("0.16.0"), "scheduler.finish_requests", GONE)
    monkeypatch.setattr(
        "harness.cli._patches.of_release", lambda release: Environment(surface, None, {})
    )
    body = said("check", "--release", "0.16.0", code=1)
    assert body["patches"]["all-chunks"]["state"] == "broken"
    assert "gone" in body["patches"]["all-chunks"]["reason"]


@pytest.fixture
def speculators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment with a speculators of our making; its vLLM is 0.16.0's surface."""
    package = tmp_path / "speculators" / "data_generation"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("raise RuntimeError('imported')")
    info = tmp_path / "speculators-0.3.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: speculators\nVersion: 0.3.9\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(_environment, "read_surface", lambda source: recorded("0.16.0"))
    return tmp_path


def test_an_anchor_gone_from_speculators_is_broken_by_name(speculators: Path) -> None:
    folder = speculators / "speculators" / "data_generation"
    (folder / "vllm_hidden_states_generator.py").write_text(
        "from vllm import Scheduler, Request\nVLLM_BLOCK_SIZE = 16\n"
        "class VllmHiddenStatesGenerator:\n    x = 1\n"
    )
    (folder / "custom_worker.py").write_text("def _patched_forward(): ...\n")
    environment = of_python(sys.executable)
    assert environment.speculators == "0.3.9"
    states = {patch.id: environment.state(patch) for patch in PATCHES}
    assert states["all-chunks"].status is Status.NEEDED
    assert states["block-size"].status is Status.OBSOLETE
    assert states["model-forward"].status is Status.NEEDED
    assert states["layer-order"].status is Status.BROKEN
    assert "no VllmHiddenStatesGenerator.generate" in states["layer-order"].reason
    assert states["two-phase"].status is Status.BROKEN


def test_another_speculators_is_not_comparable(speculators: Path) -> None:
    metadata = speculators / "speculators-0.3.9.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("0.3.9", "0.4.0"))
    with pytest.raises(NotComparable, match=r"speculators 0\.4\.0"):
        of_python(sys.executable)


def test_the_page_is_in_step_with_the_registry() -> None:
    file = Path(__file__).parents[3] / "docs" / "patches.md"
    text = CliRunner().invoke(app, ["patches", "list", "--markdown"]).stdout
    assert file.read_text() == text, "harness patches list --markdown > docs/patches.md"


def test_check_takes_one_environment() -> None:
    words = ("check", "--release", "0.16.0", "--python", sys.executable)
    assert said(*words, code=2)["error"]["id"] == "patches.two-environments"


@pytest.mark.parametrize(
    ("word", "id"), [("train", "patches.no-interpreter"), ("gone", "patches.no-command")]
)
def test_run_never_starts_a_command_to_see_what_it_is(tmp_path: Path, word: str, id: str) -> None:
    script = tmp_path / "train"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    script.chmod(0o755)
    result = CliRunner().invoke(app, ["patches", "run", "--", str(tmp_path / word), "-x"])
    assert result.exit_code == 2
    assert id in result.stderr
    assert "harness patches run" in result.stderr
    assert not (tmp_path / "ran").exists()
