"""Starts: what the child sees, what it does not see, and what cannot be started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import harness
from harness.errors import EngineFailed, HarnessError, Refused
from harness.host import Host
from harness.host.spec import HostSpec, engine_environment
from tests.unit import hosts

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def about(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What a child in an empty environment of its own says about itself."""
    folder = tmp_path_factory.mktemp("start")
    venv.create(folder / "env", with_pip=False, symlinks=True)
    spec = hosts.spec(folder, python=folder / "env" / "bin" / "python", args=("--flag", "1"))
    with Host(spec) as host:
        seen = host.call("about", deadline_s=10)
        assert host._launched is not None
        yield {**seen, "pid": host.pid, "reaper": host._launched._reaper.pid}


def failed_start(spec: HostSpec, deadline_s: float = 20) -> HarnessError:
    host = Host(spec)
    with pytest.raises(HarnessError) as caught:
        host.start(deadline_s)
    assert host._launched is None or not host._launched.folder.exists()
    return caught.value


def test_child_finds_our_package_and_nothing_else_of_ours(about: dict[str, Any]) -> None:
    own = str(Path(harness.__file__).parents[1])
    assert own not in about["path"]
    assert not [
        entry
        for entry in about["path"]
        if entry.startswith(sys.prefix + "/lib") and "site-packages" in entry
    ]
    link = Path(about["path"][0])
    assert sorted(file.name for file in link.iterdir()) == ["harness"]
    assert about["path"][1] == str(hosts.CHILDREN)


def test_child_loads_no_parent_side_module(about: dict[str, Any]) -> None:
    assert set(about["modules"]) <= {
        "harness", "harness.errors", "harness.inside", "harness.inside.wire",
        "harness.inside.deaths",
    }  # fmt: skip


def test_engine_has_its_own_group_in_the_session_of_the_reaper(about: dict[str, Any]) -> None:
    assert about["group"] == about["pid"]
    assert about["session"] == about["reaper"]
    assert os.getsid(0) != about["session"]


def test_child_gets_arguments_and_an_empty_private_folder_to_work_in(
    about: dict[str, Any],
) -> None:
    assert about["argv"] == ["--flag", "1"]
    assert list(Path(about["cwd"]).iterdir()) == []
    assert about["cwd"] not in about["path"]


def test_child_has_one_socket_and_hides_it_from_its_own_children(about: dict[str, Any]) -> None:
    assert about["sockets"] == [False]
    assert "HARNESS_CONTROL_FD" not in about["environment"]


def test_working_directory_is_not_searched_for_modules(tmp_path: Path) -> None:
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "__init__.py").write_text("raise SystemExit('the wrong module')")
    with Host(hosts.spec(tmp_path, cwd=tmp_path)) as host:
        assert host.call("about", deadline_s=10)["cwd"] == str(tmp_path)


def test_environment_is_cleaned_of_our_interpreter_and_then_extended() -> None:
    base = {
        "PATH": "/mine/bin:/usr/bin:/bin",
        "VIRTUAL_ENV": "/mine",
        "VIRTUAL_ENV_PROMPT": "mine",
        "PYTHONHOME": "/mine",
        "PYTHONPATH": "/mine/lib",
        "PYTHONSTARTUP": "/mine/start.py",
        "HOME": "/home/user",
        "HF_HOME": "/models",
    }
    spec = HostSpec(
        python=Path("/candidate/bin/python"),
        module="m",
        log=Path("log"),
        env={"VLLM_X": "1", "PYTHONPATH": "/extra", "PYTHONUNBUFFERED": ""},
    )
    result = engine_environment(spec, Path("/link"), base=base)
    assert result.pop("PATH").split(":")[:3] == ["/candidate/bin", "/usr/bin", "/bin"]
    assert result == {
        "HOME": "/home/user",
        "HF_HOME": "/models",
        "VLLM_X": "1",
        "PYTHONPATH": "/link:/extra",
        "PYTHONUNBUFFERED": "",
        "PYTHONFAULTHANDLER": "1",
        "SPT_NOENV": "1",
        "PYTHONSAFEPATH": "1",
    }
    assert base["VIRTUAL_ENV"] == "/mine"


def test_missing_interpreter_is_refused_before_anything_starts(tmp_path: Path) -> None:
    error = failed_start(hosts.spec(tmp_path, python=tmp_path / "none"))
    assert isinstance(error, Refused)
    assert error.failure.id == "host.no-interpreter"
    assert error.failure.where == str(tmp_path / "none")
    assert list(tmp_path.iterdir()) == []


def test_interpreter_that_cannot_be_executed_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_bytes(b"\x7fELF but not really")
    broken.chmod(0o755)
    error = failed_start(hosts.spec(tmp_path, python=broken))
    assert isinstance(error, Refused)
    assert error.failure.id == "host.no-interpreter"
    assert "format" in error.failure.found.lower()


def test_interpreter_in_another_word_is_not_guessed(tmp_path: Path) -> None:
    error = failed_start(hosts.spec(tmp_path, python=tmp_path))
    assert error.failure.id == "host.no-interpreter"


def test_missing_working_directory_is_refused(tmp_path: Path) -> None:
    error = failed_start(hosts.spec(tmp_path, cwd=tmp_path / "none"))
    assert error.failure.id == "host.no-folder"


def test_log_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    error = failed_start(hosts.spec(tmp_path, log=tmp_path / "file" / "log"))
    assert isinstance(error, Refused)
    assert error.failure.id == "host.log"


def test_missing_module_is_one_error_with_the_last_log_lines(tmp_path: Path) -> None:
    error = failed_start(hosts.spec(tmp_path, module="no_such_module"))
    assert isinstance(error, EngineFailed)
    assert error.failure.id == "host.start-failed"
    assert "exit code 1" in error.failure.found
    assert "No module named no_such_module" in error.failure.found


def test_log_of_an_earlier_run_is_kept_and_not_shown(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "engine.log"
    log.parent.mkdir()
    log.write_text("an earlier run\n")
    error = failed_start(hosts.spec(tmp_path, module="no_such_module", log=log))
    assert "an earlier run" not in error.failure.found
    assert log.read_text().startswith("an earlier run\n")


def write_module(folder: Path, text: str) -> dict[str, Any]:
    (folder / "mute.py").write_text(text)
    return {"module": "mute", "env": {"PYTHONPATH": str(folder)}}


def test_child_that_dies_before_hello_is_named_with_its_signal(tmp_path: Path) -> None:
    mute = write_module(tmp_path, "import os; print('so far'); os.kill(os.getpid(), 9)")
    error = failed_start(hosts.spec(tmp_path, **mute))
    assert error.failure.id == "host.start-failed"
    assert "killed by SIGKILL" in error.failure.found
    assert "| so far" in error.failure.found


def test_child_that_never_says_hello_is_cut_at_the_deadline(tmp_path: Path) -> None:
    mute = write_module(tmp_path, "print('mute', flush=True)\nwhile True: pass")
    error = failed_start(hosts.spec(tmp_path, **mute), deadline_s=0.7)
    assert error.failure.id == "host.deadline"
    assert "op start" in error.failure.where
    assert "| mute" in error.failure.found


def test_child_of_another_protocol_is_refused_in_clear_words(tmp_path: Path) -> None:
    mute = write_module(
        tmp_path,
        "import os, time\n"
        'text = b\'{"event": "hello", "pid": 1, "protocol": 99}\\n\'\n'
        "os.write(int(os.environ['HARNESS_CONTROL_FD']), text)\n"
        "time.sleep(60)",
    )
    error = failed_start(hosts.spec(tmp_path, **mute))
    assert error.failure.id == "host.protocol"
    assert "99" in error.failure.found


def test_start_of_a_running_host_does_nothing(tmp_path: Path) -> None:
    with Host(hosts.spec(tmp_path)) as host:
        assert host.start(1) == host.hello


def test_engine_program_without_a_host_says_so() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "host_child"],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{hosts.CHILDREN}"},
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert result.returncode == 1
    assert "started by the harness host" in result.stderr


def test_parent_side_imports_no_engine_and_no_heavy_library() -> None:
    code = "import harness.host, sys, json; print(json.dumps(sorted(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = {name.split(".")[0] for name in json.loads(result.stdout)}
    ours = {name for name in loaded if name not in sys.stdlib_module_names}
    assert {name for name in ours if not name.startswith("_")} == {"harness"}


def test_reaper_needs_the_standard_library_alone() -> None:
    reaper = ROOT / "harness" / "host" / "ending" / "reaper.py"
    result = subprocess.run(
        [sys.executable, "-I", "-S", str(reaper)], input="", capture_output=True, text=True
    )
    assert (result.returncode, result.stderr) == (1, "")
