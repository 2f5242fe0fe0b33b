"""The estimate's cache arithmetic beside the installed vLLM's own; no engine is loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.estimate import needs

pytestmark = [pytest.mark.engine, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).parent / "_scripts" / "cache_pages.py"


def test_latents_and_four_layers_of_hidden_states_share_a_group_of_unpadded_pages() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=300, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    pages = needs("kimi-k2.5", 8).pages
    assert found["groups"] == 1
    assert found["block"] == pages.block
    assert found["latent_page"] == pages.latent_page
    assert found["hidden_page"] == pages.hidden_page
    assert found["page"] == pages.block * pages.token
    assert found["parted_page"] // found["parted_tokens"] == pages.parted_token
