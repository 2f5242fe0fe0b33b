"""What is written down of a running engine, and where its own files go."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from harness import state
from harness.host import Host, processes
from harness.host.launch import Launched
from harness.host.leftovers import record
from harness.host.leftovers.private import make_folder, temporary_environment
from harness.host.processes import Process
from tests.unit import hosts


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder of this test's own."""
    folder = tmp_path / "state"
    monkeypatch.setenv(state.VARIABLE, str(folder))
    return folder


def records() -> list[record.EngineRecord]:
    return [found for _, found in record.recorded() if found is not None]


def test_running_engine_has_a_record_that_names_every_process_and_goes_with_it(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    with Host(hosts.spec(tmp_path, model="/models/kimi")) as host:
        (found,) = records()
        launched = host._launched
        assert launched is not None
        assert found.owner == processes.read(os.getpid())
        assert found.engine == processes.read(host.pid)
        assert found.reaper == processes.read(launched._reaper.pid)
        assert (found.devices, found.model) == ("3,1", "/models/kimi")
        assert found.log == str(tmp_path / "engine.log")
        assert "pytest" in found.command
        assert abs(found.started_at - time.time()) < 60
        assert found.machine == record.this_machine()
        raw = json.loads(next((home / "engines").iterdir()).read_text())
        about = host.call("about", deadline_s=10)
        assert (raw["session"], raw["group"]) == (about["session"], about["group"])
        assert about["environment"][record.TOKEN] == found.token
        mark = record.read_owner_mark(about["environment"][record.OWNER])
        assert mark == found.owner
    assert list((home / "engines").iterdir()) == []


def test_record_is_removed_by_the_reaper_when_the_owner_was_killed(
    tmp_path: Path, home: Path
) -> None:
    script = hosts.CHILDREN / "host_parent.py"
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "log"), str(tmp_path / "pids"), "idle"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(root)},
    ) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        (found,) = records()
        assert found.owner.pid == parent.pid
        parent.kill()
        until = time.monotonic() + 5
        while records() and time.monotonic() < until:
            time.sleep(0.02)
    assert list((home / "engines").iterdir()) == []
    assert not Path(found.folder).exists()


def test_record_stays_when_something_survived_and_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(hosts.spec(tmp_path))
    host.start(20)
    launched = host._launched
    assert launched is not None
    with monkeypatch.context() as patch:
        patch.setattr(Launched, "_sweep", lambda self: ["stuck (pid 7)"])
        launched._reaper.kill()
        assert launched.end() == ["stuck (pid 7)"]
    (found,) = records()
    assert found.left == ("stuck (pid 7)",)
    assert Path(found.folder).exists()
    launched.folder = Path(found.folder)
    launched._sweep()
    launched._close([])
    assert hosts.running_after([p for p in [found.engine] if p], 3) == []


def test_home_that_cannot_be_written_does_not_keep_an_engine_from_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(state.VARIABLE, str(tmp_path / "file" / "state"))
    with Host(hosts.spec(tmp_path)) as host:
        assert host.call("echo", {"a": 1}, deadline_s=10) == {"a": 1}
        assert host._launched is not None
        assert str(tmp_path / "file") in host._launched.recorder.problem
        assert "no record of this engine" in host.spec.log.read_text()


def test_record_costs_less_than_five_milliseconds(home: Path) -> None:
    owner = Process(os.getpid(), 1, name="me")
    recorder = record.Recorder(record.first_record(token="t", owner=owner))
    times = []
    for number in range(20):
        begun = time.thread_time()  # of this thread alone: other work on the machine may wait
        recorder.note(engine=Process(number, 1, name="engine"))
        times.append(time.thread_time() - begun)
    recorder.drop()
    assert sorted(times)[10] < 0.005


@pytest.mark.parametrize(
    "change", [{"owner": None}, {"machine": {"host": "x"}}, {"started_at": "soon"}, {"left": None}]
)
def test_record_of_an_unknown_form_is_told_apart(home: Path, change: dict[str, object]) -> None:
    first = record.first_record(token="t", owner=Process(1, 1, name="init"))
    path = record.path_of("t")
    state.write_record(path, {**first.to_json(), **change})
    assert list(record.recorded()) == [(path, None)]
    state.write_record(path, first.to_json())
    assert list(record.recorded()) == [(path, first)]


@pytest.mark.parametrize("text", ["", "12", "12:", ":3", "a:b", "1:2:3"])
def test_broken_owner_mark_is_none(text: str) -> None:
    assert record.read_owner_mark(text) is None


def test_files_that_an_engine_leaves_in_its_temporary_folder_go_with_it(tmp_path: Path) -> None:
    with Host(hosts.spec(tmp_path)) as host:
        environment = host.call("about", deadline_s=10)["environment"]
        temporary = Path(environment["TMPDIR"])
        assert host._launched is not None
        assert temporary.parent == host._launched.folder
        (temporary / "litter").write_text("")
    assert not temporary.exists()


def test_private_folder_leaves_room_for_the_names_of_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 60)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    folder = make_folder()
    try:
        temporary = temporary_environment(folder, {})["TMPDIR"]
        # What vLLM makes: a uuid of 36; and 11 more for whatever comes.
        assert len(temporary) + 1 + 36 + 11 <= 107
        assert Path(temporary).is_dir()
    finally:
        (folder / "tmp").rmdir()
        folder.rmdir()


def test_caches_of_compiled_code_stay_where_they_would_be_without_us(tmp_path: Path) -> None:
    folder = Path("/tmp/harness-host-12345678")
    assert temporary_environment(folder, {"TORCHINDUCTOR_CACHE_DIR": "/c"}) == {
        "TMPDIR": f"{folder}/tmp",
        "TORCHINDUCTOR_CACHE_DIR": "/c",
    }
    cache = temporary_environment(folder, {"TMPDIR": "/scratch"})["TORCHINDUCTOR_CACHE_DIR"]
    assert cache.startswith("/scratch/torchinductor_")
    assert temporary_environment(tmp_path / ("x" * 100), {}) == {}


def test_users_own_temporary_folder_for_the_engine_wins(tmp_path: Path) -> None:
    with Host(hosts.spec(tmp_path, env={"TMPDIR": str(tmp_path)})) as host:
        assert host.call("about", deadline_s=10)["environment"]["TMPDIR"] == str(tmp_path)
