"""What a session leaves: nothing, and where it leaves something, it fails and says what."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness import gpu_lock
from harness.gpu_lock import GpuLock
from harness.host.leftovers import private, record
from harness.reclaim.memory import DeviceUse
from tests.unit.interpreters import StandIn
from tests.unit.plugins import Inner, inner

__all__ = ["inner"]
pytest_plugins = ["pytester"]

USE = """
    def test_first(engine):
        engine.hidden_states([[1, 2, 3]])
"""


@pytest.fixture
def cuda(inner: Inner) -> StandIn:
    """An interpreter whose vLLM uses GPUs."""
    # Visible below as MIG-x, so that no lock of this machine's own GPUs is asked for.
    inner.box({"devices": [{"mig": {"mode": [1, 1], "slices": [{"uuid": "MIG-x"}]}}]})
    stand_in = StandIn(inner.pytester.path / "cuda", device="cuda")
    path = stand_in.folder / "facts.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "gpus": 1}))
    return stand_in


def test_engine_on_gpus_that_another_session_has_is_refused(
    inner: Inner, cuda: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-x")
    with GpuLock(["MIG-x"], folder=Path(os.environ["HARNESS_GPU_LOCKS"])):
        result = inner.run(USE, python=cuda)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*gpus.locked*"])
    assert cuda.engines() == []


def test_session_gives_its_gpus_back(
    inner: Inner, cuda: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-x")
    result = inner.run(USE, python=cuda)
    assert len(cuda.engines()) == 1, result.stdout.str()
    GpuLock(["MIG-x"], folder=Path(os.environ["HARNESS_GPU_LOCKS"])).release()
    assert [path.name for path in Path(os.environ["HARNESS_GPU_LOCKS"]).iterdir()] == ["MIG-x.lock"]


MARKS = """
    import os, subprocess, sys
    from harness.host import processes
    from harness.host.leftovers.record import OWNER, TOKEN, owner_mark

    def marked(code):
        me = processes.read(os.getpid())
        env = {**os.environ, TOKEN: "feedfeedfeed", OWNER: owner_mark(me)}
        return subprocess.Popen([sys.executable, "-S", "-c", code], env=env)
"""


def pid_of(result: pytest.RunResult, inner: Inner) -> int:
    return int((inner.pytester.path / "pid").read_text())


def test_session_that_leaves_nothing_says_nothing(inner: Inner) -> None:
    result = inner.run(USE)
    result.assert_outcomes(passed=1)
    assert result.ret == 0
    result.stdout.no_fnmatch_line("*left behind*")
    assert list(Path(os.environ["HARNESS_STATE"], "engines").glob("*")) == []


def test_process_of_an_engine_that_a_test_always_leaves_fails_the_session(
    inner: Inner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.plugin._leaks.SETTLE_S", 0.1)
    result = inner.run(
        MARKS
        + """
    import pytest

    @pytest.mark.engine
    def test_leaks():
        child = marked("import time; time.sleep(30)")
        open("pid", "w").write(str(child.pid))
    """
    )
    pid = pid_of(result, inner)
    try:
        result.assert_outcomes(passed=1)
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        result.stdout.fnmatch_lines(
            [
                f"FAILED: left behind: process: python* (pid {pid}, state ?) of engine feedfeed "
                f"still runs; next: harness reclaim --pid {pid}:* --yes"
            ]
        )
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_process_that_is_just_ending_is_no_leak(inner: Inner) -> None:
    result = inner.run(
        MARKS
        + """
    import pytest

    @pytest.mark.engine
    def test_slow_end():
        marked("import time; time.sleep(0.3)")
    """
    )
    assert result.ret == 0


@pytest.fixture
def swept() -> Iterator[None]:
    """Take away what the leaking session below leaves in this process."""
    yield
    for folder in private.left_folders():
        private.remove_folder(folder)
    Path("/dev/shm/psm_harness_test").unlink(missing_ok=True)
    for module in (gpu_lock, record):
        if (kept := vars(module).pop("KEPT", None)) is not None:
            getattr(kept, "release", getattr(kept, "drop", None))()


@pytest.mark.usefixtures("swept")
def test_each_kind_of_leak_is_told_with_the_next_step(
    inner: Inner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.plugin._leaks.SETTLE_S", 0.1)
    result = inner.run("""
    import os, pytest
    from pathlib import Path
    from harness import gpu_lock
    from harness.host import processes
    from harness.host.leftovers import private, record, shared

    @pytest.mark.engine
    def test_leaks():
        private.make_folder()
        shared.remember(["psm_harness_test"])
        Path("/dev/shm/psm_harness_test").write_text("x")
        gpu_lock.KEPT = gpu_lock.GpuLock(["MIG-x"])
        me = processes.read(os.getpid())
        kept = record.first_record(token="cafecafecafe", owner=me, log="/the/log")
        record.KEPT = record.Recorder(kept)
    """)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "FAILED: left behind: engine: cafecafe was never ended (log: /the/log); next: harness*",
            "FAILED: left behind: folder: */harness-host-*; next: remove it",
            "FAILED: left behind: shared memory: /dev/shm/psm_harness_test; next: *",
            "FAILED: left behind: lock: GPU MIG-x is still locked by this process; *",
        ]
    )


def test_device_memory_that_does_not_come_back_fails_the_session(
    inner: Inner, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner.gpus(["H200"])
    readings = iter([(DeviceUse(2, 3 << 20),)])
    late = (DeviceUse(2, 75_728 << 20),)
    meter = SimpleNamespace(read=lambda: next(readings, late))
    monkeypatch.setattr("harness.reclaim.meters.meter_of_this_machine", lambda: meter)
    monkeypatch.setattr("harness.plugin._leaks.MEMORY_S", 0.0)
    result = inner.run(USE)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "FAILED: left behind: device memory: device 2: 75,728 MiB used, 75,725 MiB above what "
            "it should be: held below the runtime (256 MiB above the baseline are allowed); next: *"
        ]
    )


def test_sessions_without_engine_and_gpu_tests_look_at_nothing(
    inner: Inner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.reclaim.leaks.LeakCheck", None)
    result = inner.run("def test_plain(): pass")
    assert result.ret == 0


@pytest.mark.slow
def test_leak_of_a_worker_of_xdist_reaches_the_report(inner: Inner) -> None:
    result = inner.run_apart(
        MARKS
        + """
    import pytest

    @pytest.mark.engine
    def test_leaks():
        child = marked("import time; time.sleep(6)")
        open("pid", "w").write(str(child.pid))
    """,
        "-p",
        "xdist.plugin",
        "-n1",
    )
    try:
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        result.stdout.fnmatch_lines(["FAILED: left behind: process: *"])
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid_of(result, inner), signal.SIGKILL)


@pytest.mark.parametrize(
    ("number", "where"),
    [
        (signal.SIGTERM, "extract"),
        pytest.param(signal.SIGINT, "load", marks=pytest.mark.slow),
    ],
)
def test_always_hanging_engine_is_cut_by_a_signal_and_leaves_nothing(
    inner: Inner, number: signal.Signals, where: str
) -> None:
    inner.python.behave(**{where: "hang"})
    result = inner.run_apart(f"""
    import os, threading, time, signal
    from pathlib import Path

    def interrupt():
        while not Path({str(inner.python.folder / "loads")!r}).exists():
            time.sleep(0.02)
        time.sleep(0.3)
        os.kill(os.getpid(), {int(number)})

    threading.Thread(target=interrupt, daemon=True).start()

    def test_hanging(engine):
        engine.hidden_states([[1, 2]])
    """)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["engine failure: KeyboardInterrupt: *"])
    result.stdout.no_fnmatch_line("*left behind*")
    assert len(inner.python.engines()) == 1
    assert not inner.python.running(seconds=0)
    assert list(Path(os.environ["HARNESS_STATE"], "engines").glob("*")) == []
