"""Contracts of ``harness surface``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli import app
from harness.errors import ExitCode
from harness.seams import Surface
from tests.unit import releases

FILES = {"m.py": "def f(a): ...\n"}


def _run(*args: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["surface", *args])
    assert done.exit_code == code, done.output
    return done.stdout


def test_record_writes_a_surface_that_show_reads(tmp_path: Path) -> None:
    wheel = releases.wheel(tmp_path, FILES)
    said = json.loads(_run("record", str(wheel), "--out", str(tmp_path), "--json"))
    written = tmp_path / "0.99.1.json"
    assert said["out"] == str(written)
    assert Surface.loads(written.read_text()).digest == said["digest"]
    assert _run("record", str(wheel)) == written.read_text()
    assert json.loads(_run("show", str(wheel), "--json"))["digest"] == said["digest"]


def test_show_tells_probes_and_what_does_not_get_through() -> None:
    said = json.loads(_run("show", "0.16.0", "--json"))
    assert said["probes"]["execute-model.two-phase"] == "yes"
    crash = {
        "seam": "scheduler",
        "by": "speculators-0.3.0",
        "kind": "needs-argument",
        "subject": "block_size",
        "reason": "needs block_size",
    }
    assert any(crash.items() <= finding.items() for finding in said["findings"])
    assert said["entries"]["scheduler"]["kind"] == "class"
    table = _run("show", "0.16.0")
    assert "execute-model.two-phase" in table
    assert "needs block_size" in table


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("show", "0.10.0"), ExitCode.UNKNOWN),
        (("show", "gone.whl"), ExitCode.USAGE),
        (("record", "gone.whl"), ExitCode.USAGE),
    ],
)
def test_what_cannot_be_read_ends_with_its_code(args: tuple[str, ...], code: int) -> None:
    said = json.loads(_run(*args, "--json", code=int(code)))
    assert said["error"]["id"].startswith("seams.")
    assert said["error"]["next"]


def test_record_into_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    wheel = releases.wheel(tmp_path, FILES)
    out = tmp_path / "gone" / "x.json"
    said = json.loads(_run("record", str(wheel), "--out", str(out), "--json", code=2))
    assert said["error"]["id"] == "seams.cannot-write"


def test_record_never_makes_a_file_of_a_folder_that_was_meant(tmp_path: Path) -> None:
    wheel = releases.wheel(tmp_path, FILES)
    out = f"{tmp_path}/surfaces/"
    said = json.loads(_run("record", str(wheel), "--out", out, "--json", code=2))
    assert said["error"]["id"] == "seams.cannot-write"
    assert not Path(out).exists()
