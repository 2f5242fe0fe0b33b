"""A real engine under a lease: two runs of pytest, one load; a changed patch refused by name.

Everything runs from a copy of the harness, so that a file of it can be changed in between.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import harness
from harness.host import processes
from tests.unit.hosts import named, running_after

pytestmark = [pytest.mark.engine, pytest.mark.slow]

TEST = """
import hashlib
from pathlib import Path


def test_rows(engine):
    assert (engine.loads, engine.lease.loads) == (0, 1)
    samples = engine.hidden_states([[5, 6, 7, 8], list(range(1, 60))], check=True)
    assert [sample.tokens for sample in samples] == [4, 59]
    state = hashlib.blake2b(b"".join(sample.stored.tobytes() for sample in samples))
    Path(__file__).with_name("rows").write_text(state.hexdigest())


def test_dataset(extraction):
    assert extraction.result.samples == len(extraction.samples) > 0


def test_that_fails(engine):
    assert engine is None
"""


class Checkout:
    """A copy of the harness with its own leases.

    Attributes:
        package: The copy's ``harness`` folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        source = Path(harness.__file__).parents[1]
        self.package = folder / "harness"
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source / "harness", self.package, ignore=ignore)
        shutil.copytree(source / "fixtures" / "prompts", folder / "fixtures" / "prompts")
        (folder / "tests").mkdir()
        (folder / "tests" / "test_rows.py").write_text(TEST)

    def run(self, *words: str, code: int = 0) -> str:
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.folder),
            "HARNESS_STATE": str(self.folder / "state"),
        }
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def engine(self, *words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("harness", "engine", *words, "--json"))
        return found

    def pytest(self) -> str:
        """Run the tests; one of them fails."""
        cache = ("-p", "no:cacheprovider", f"--basetemp={self.folder / 'tmp'}")
        return self.run("pytest", "-q", "-ra", *cache, "tests", "--hs-attach=tiny", code=1)

    @property
    def rows(self) -> str:
        return (self.folder / "tests" / "rows").read_text()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    one = Checkout(tmp_path_factory.mktemp("checkout"))
    yield one
    if any(lease["name"] == "tiny" for lease in one.engine("status")["leases"]):
        one.engine("stop", "tiny", "--force")


def test_two_runs_of_pytest_one_load_and_a_changed_patch_is_refused_by_name(
    checkout: Checkout, tiny_wrapper: Path
) -> None:
    common = ("--model", str(tiny_wrapper), "--layers", "1,3,4", "--dtype", "float32")
    started = checkout.engine("start", *common, "--name", "tiny", "--for", "20m")
    assert (started["state"], started["loads"], started["devices"]) == ("ready", 1, "cpu")
    tree = named([started["pid"], started["engine_pid"]])
    tree += processes.descendants([started["pid"]])
    assert len(tree) >= 4  # the reaper and a worker besides

    rows = set()
    for _ in range(2):
        said = checkout.pytest()
        assert "2 passed" in said
        assert "1 failed" in said
        assert ", load 1 of this lease)" in said
        rows.add(checkout.rows)
    assert len(rows) == 1
    (lease,) = checkout.engine("status")["leases"]
    assert (lease["state"], lease["loads"], lease["sessions"]) == ("ready", 1, 2)
    assert lease["engine_pid"] == started["engine_pid"]
    assert Path(lease["log"]).read_text().count("Starting to load model") == 1
    assert [path.name for path in Path(lease["spool"]).iterdir()] == ["results.jsonl"]

    patch = checkout.package / "patches" / "worker" / "host_copy.py"
    text = patch.read_text()
    patch.write_text(text + "# changed\n")
    said = checkout.pytest()
    assert "found:    patch `host-copy` differs\n" in said
    assert "3 errors" in said
    patch.write_text(text)
    assert "2 passed" in checkout.pytest()

    os.kill(started["pid"], signal.SIGKILL)
    assert running_after(tree, 15) == []
    (lease,) = checkout.engine("status")["leases"]
    assert (lease["state"], lease["loads"]) == ("dead", 1)
    checkout.engine("stop", "tiny")
    assert not list((checkout.folder / "state" / "leases").glob("tiny*"))
