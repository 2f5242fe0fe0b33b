"""Twelve faults against the stub engine: how soon each is noticed, how it reads, what it leaves.

``python -m tests.unit.fault_matrix --repeat 20 --seed 1 --out FILE`` repeats each at random times
and writes the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import HarnessError
from harness.host import Host, processes
from harness.host.leftovers import shared
from harness.host.leftovers.record import open_records, recorded
from harness.host.processes import Process
from harness.reclaim import Linux
from harness.reclaim.leaks import LeakCheck
from harness.reclaim.memory import NoGpus
from tests.unit import hosts

ROOT = Path(__file__).parents[2]
DEATH_S = 2.0
HANG_S = 5.0
_DEADLINE_S = 0.6
_SETTLE_S = 3.0


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        name: What happens.
        kind: ``death``, ``halt``, ``hang`` (counted from the deadline) or ``parent``.
        told: What the error, or for a parent its last words or the engine's log, must say.
        op: The operation during which it happens.
        strike: Makes it happen to (engine, worker 0, worker 1); None: the operation does.
    """

    name: str
    kind: str
    told: tuple[str, ...]
    op: str = "work"
    strike: Callable[[list[int]], None] | None = None


def _worker(number: int) -> Callable[[list[int]], None]:
    return lambda pids: os.kill(pids[2], number)


def _limit(pids: list[int]) -> None:
    resource.prlimit(pids[1], resource.RLIMIT_AS, (1 << 20, 1 << 20))


ENGINE_FAULTS = (
    Fault("worker SIGKILL", "death", ("host.worker-died", "VllmWorker-1", "SIGKILL"),
          strike=_worker(signal.SIGKILL)),
    Fault("worker SIGSTOP", "halt", ("host.process-stopped", "halted by SIGSTOP"),
          strike=_worker(signal.SIGSTOP)),
    Fault("worker SIGSEGV", "death", ("host.worker-died", "VllmWorker-1", "SIGSEGV"),
          strike=_worker(signal.SIGSEGV)),
    Fault("worker silent exit 0", "death", ("host.worker-died", "VllmWorker-1", "exit code 0"),
          strike=_worker(signal.SIGUSR2)),
    Fault("host memory limit", "death", ("host.worker-died", "VllmWorker-0", "MemoryError"),
          strike=_limit),
    Fault("hung native call", "hang", ("host.deadline", "still running"), op="hang"),
    Fault("exception in set-up", "death", ("engine.error", "weights of layer 3"), op="load"),
    Fault("full disk", "death", ("engine.error", "No space left on device"), op="write"),
    Fault("closed socket", "death", ("host.protocol", "closed it"), op="hang_up"),
)  # fmt: skip
PARENT_FAULTS = (
    Fault("parent SIGKILL", "parent", ("which had started this engine, is gone",)),
    Fault("parent SIGINT", "parent", ("KeyboardInterrupt",)),
    Fault("parent SIGTERM", "parent", ("which had started this engine, is gone",)),
)
FAULTS = (*ENGINE_FAULTS, *PARENT_FAULTS)


@dataclass(frozen=True)
class Outcome:
    """What came of one fault.

    Attributes:
        fault: Its name.
        seconds: From the fault to the error, for a hang from the deadline; for a parent's end to
            the end of the last process.
        text: What the user reads.
        left: Everything that was still there afterwards; empty where nothing was.
    """

    fault: str
    seconds: float
    text: str
    left: list[str] = field(default_factory=list)


def run(fault: Fault, folder: Path, *, delay: float = 0.05) -> Outcome:
    """Let a fault happen ``delay`` seconds after its operation began, and look at what is left.

    The state folder must be one of this run's own.
    """
    how = _parent if fault.kind == "parent" else _engine
    return how(fault, folder, delay)


def _engine(fault: Fault, folder: Path, delay: float) -> Outcome:
    me = processes.read(os.getpid())
    assert me is not None
    check = LeakCheck(Linux(), NoGpus(), me, None)
    files = set(Path("/proc/self/fd").iterdir())
    host = Host(hosts.spec(folder, module="stub_engine"))
    facts: Mapping[str, Any] = {"pids": [], "segments": []}
    moments: list[float] = []
    everyone: list[Process] = []
    text = "no error at all"
    try:
        host.start(30)
        if fault.op == "load":
            host.call("load", {"fail": str(folder / "told")}, deadline_s=20)
        facts = host.call("load", deadline_s=20)
        everyone = hosts.named(facts["pids"])
        if fault.strike is None:
            time.sleep(delay)
            moments.append(time.monotonic() + (_DEADLINE_S if fault.kind == "hang" else 0))
        else:
            _later(fault.strike, facts["pids"], delay, moments)
        host.call(fault.op, deadline_s=_DEADLINE_S if fault.kind == "hang" else 20)
    except HarnessError as error:
        if fault.op == "load":
            facts = json.loads((folder / "told").read_text())
            moments.append(facts["at"])
        seconds = time.monotonic() - moments[0]
        text = str(error)
    finally:
        host.close()
    left = [str(leak) for leak in check.leaks(settle_s=_SETTLE_S, memory_s=0)]
    left += [_told(p) for p in hosts.running(everyone)]
    left += _remains(facts, folder)
    left += [f"open file {f.name}" for f in set(Path("/proc/self/fd").iterdir()) - files
             if f.is_symlink()]  # fmt: skip
    return Outcome(fault.name, round(seconds, 3), text, left)


def _later(
    strike: Callable[[list[int]], None], pids: list[int], delay: float, moments: list[float]
) -> None:
    def act() -> None:
        time.sleep(delay)
        moments.append(time.monotonic())
        strike(pids)

    threading.Thread(target=act).start()


def _parent(fault: Fault, folder: Path, delay: float) -> Outcome:
    number = signal.Signals[fault.name.split()[1]]
    log = folder / "engine.log"
    script = hosts.CHILDREN / "stub_parent.py"
    program = subprocess.Popen(
        [sys.executable, str(script), str(log)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background job ignores Ctrl-C, and so would this parent.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": "1"},
    )
    assert program.stdout is not None
    facts = json.loads(program.stdout.readline())
    ((_, record),) = recorded()
    assert record is not None
    everyone = [*hosts.named(facts["pids"]), *filter(None, [record.reaper])]
    time.sleep(delay)
    begun = time.monotonic()
    program.send_signal(number)
    left = [_told(p) for p in hosts.running_after(everyone, DEATH_S + 1)]
    seconds = time.monotonic() - begun
    try:
        _, errors = program.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        left.append(f"the parent (pid {program.pid}) itself")
        program.send_signal(signal.SIGABRT)  # Its stacks are then in its last words.
        _, errors = program.communicate()
        print(errors, file=sys.stderr)
    text = log.read_text() if number != signal.SIGINT else errors
    left += _remains({**facts, "temporary": record.folder}, folder)
    return Outcome(fault.name, round(seconds, 3), text.rstrip().splitlines()[-1], left)


def _told(process: Process) -> str:
    """Say what still runs, and what runs below it."""
    found = [processes.read(process.pid), *processes.descendants([process.pid])]
    names = [
        f"{p.pid} {p.state} {processes.command_line(p.pid)[:120]}" for p in found if p is not None
    ]
    return f"still runs: {'; '.join(names)}"


def _remains(facts: Mapping[str, Any], folder: Path) -> list[str]:
    """What is on disk and in shared memory; the last process is only just gone."""
    temporary = Path(facts.get("temporary", folder / "none"))
    until = time.monotonic() + 1
    while True:
        left = [f"/dev/shm/{name}" for name in facts["segments"] if (shared.FOLDER / name).exists()]
        left += [str(path) for path in (temporary,) if path.exists()]
        left += [f"record {path}" for path, _ in recorded()]
        left += [f"open record {record.token}" for record in open_records()]
        if not left or time.monotonic() > until:
            return left
        time.sleep(0.02)


def fits(fault: Fault, outcome: Outcome) -> list[str]:
    """Return what an outcome breaks of the promises."""
    limit = HANG_S if fault.kind in ("hang", "halt") else DEATH_S
    broken = [f"left behind: {what}" for what in outcome.left]
    if outcome.seconds > limit:
        broken.append(f"noticed after {outcome.seconds} s, the limit is {limit} s")
    broken += [f"the error does not say {t!r}" for t in fault.told if t not in outcome.text]
    if len(outcome.text.splitlines()) > 24 or len(outcome.text) > 4000:
        broken.append(f"{len(outcome.text)} characters are no readable error")
    return broken


def main() -> int:
    """Repeat each fault at random times and write the figures."""
    options = argparse.ArgumentParser()
    options.add_argument("--repeat", type=int, default=20)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", default="", help="part of a fault's name")
    options.add_argument("--out", type=Path)
    given = options.parse_args()
    draw = random.Random(given.seed)
    figures = []
    for fault in (fault for fault in FAULTS if given.only in fault.name):
        outcomes = []
        broken = []
        for _ in range(given.repeat):
            with tempfile.TemporaryDirectory(prefix="hs-fault-", dir="/tmp") as name:
                os.environ["HARNESS_STATE"] = f"{name}/state"
                outcome = run(fault, Path(name), delay=draw.uniform(0, 0.7))
            outcomes.append(outcome)
            broken += fits(fault, outcome)
        seconds = sorted(outcome.seconds for outcome in outcomes)
        figures.append(
            {
                "fault": fault.name,
                "kind": fault.kind,
                "repetitions": len(outcomes),
                "leaks": sum(len(outcome.left) for outcome in outcomes),
                "broken": broken,
                "seconds": {"median": seconds[len(seconds) // 2], "max": seconds[-1]},
            }
        )
        print(json.dumps(figures[-1]), flush=True)
    if given.out:
        given.out.write_text(json.dumps({"seed": given.seed, "faults": figures}, indent=1) + "\n")
    return int(any(figure["broken"] for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
