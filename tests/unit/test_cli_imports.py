"""A command imports what it uses: an answer in a second leaves no time for all the others."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("numpy", "jinja2", "torch", "vllm", "transformers", "harness.models", "harness.extraction")


def imported(*words: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "harness", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


@pytest.mark.parametrize("words", [("gate", "--help"), ("gate", "0.32.0", "--from", "0.31.0")])
def test_gate_imports_no_engine_and_no_arrays(words: tuple[str, ...]) -> None:
    found = imported(*words)
    assert "harness.gate.static" in found
    assert [name for name in HEAVY if name in found] == []


def test_words_that_name_no_command_are_met_by_all_of_them() -> None:
    found = imported("--help")
    assert {"harness.gate.static", "harness.extraction", "harness.preflight"} <= found
