"""The reaper: a small program between the parent and the engine that ends everything.

Run by path with ``python -I -S``: it needs the standard library and two files beside it,
``processes.py`` and ``leftovers/shared.py``, and sees nothing of the parent's packages. It leads
its own session, is the *subreaper* of all it starts (an orphan comes back to it, also one that was
double-forked or changed its session), and starts the engine in its own process group.

Lifeline (standard input): the first line is the order as JSON, later the line ``end``.
End-of-file means that the parent is gone, whatever killed it. Status (a pipe): JSON lines
``started``, ``refused``, ``exited``, ``stopped``, ``survivors``, ``ended``.

It ends the tree on an ``end``, on end-of-file, and when the engine exits: SIGTERM for every
descendant, a grace, then SIGKILL until ``waitpid`` knows no child. It never exits earlier,
so its own end is the proof that no descendant is left.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.host import processes
    from harness.host.leftovers import shared
else:

    def _loaded(name: str) -> Any:
        path = Path(__file__).absolute().parents[1] / name
        spec = importlib.util.spec_from_file_location(f"_reaper_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module

    processes = _loaded("processes.py")
    shared = _loaded("leftovers/shared.py")

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_END = b"end\n"
_TICK_S = 0.5
_STOPPED_S = 1.0
_KEEPER_S = 3.0  # It ends within milliseconds, on a busy machine within a second.
_SURVIVOR_S = 5.0
_RESET = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCHLD,
)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


class Reaper:
    """State of one run: the order, the engine and the pipes."""

    def __init__(self, order: dict[str, Any], rest: bytes) -> None:
        self._order = order
        self._buffer = rest
        self._status: int = order["status"]
        # A parent that was interrupted at once has written both before this program read.
        self._told_end = _END in rest
        self._engine = -1
        self._exited = False
        self._tree: list[processes.Process] = []
        self._shared: set[str] = set()
        self._stopped: dict[processes.Process, float] = {}
        self._next_look = 0.0
        self._wake, wake_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(wake_end, False)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            # A handler and not SIG_IGN: what is ignored stays ignored in the engine.
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_term)

    def _on_term(self, *_: object) -> None:
        self._told_end = True

    def run(self) -> int:
        """Start the engine, watch, end everything; the exit status of this program."""
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        unwanted = self._told_end
        started = not unwanted and self._start()
        if unwanted:
            self._say("ended")
        if started:
            os.set_blocking(0, False)
            while not (self._exited or self._told_end or self._parent_gone()):
                self._wait(_TICK_S)
                self._collect()
                self._record_tree()
            self._note_shared()
            self._end_all()
            self._remove_shared()
            self._say("ended")
        if self._parent_gone():
            print(
                f"harness: process {self._order['parent']}, which had started this engine, is "
                "gone; everything of it was ended",
                file=sys.stderr,
                flush=True,
            )
            shutil.rmtree(self._order["private"], ignore_errors=True)
            # Last: it leads whoever cleans up to all the rest.
            with contextlib.suppress(OSError):
                Path(self._order["record"]).unlink()
        return 0 if started or unwanted else 1

    def _start(self) -> bool:
        order = self._order
        own_pid = os.getpid()

        def before_exec() -> None:
            for number in _RESET:
                signal.signal(number, signal.SIG_DFL)
            if not order["core_dumps"]:
                # 1 and not 0: it also stops a core that is piped to a collector. Writing
                # tens of gigabytes would hide the death for minutes.
                hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
                soft = 1 if hard == resource.RLIM_INFINITY else min(1, hard)
                resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != own_pid:
                os._exit(1)

        try:
            engine = subprocess.Popen(
                order["argv"],
                env=order["env"],
                cwd=order["cwd"],
                stdin=subprocess.DEVNULL,
                pass_fds=(order["control"],),
                process_group=0,
                preexec_fn=before_exec,
            )
        except (OSError, subprocess.SubprocessError) as error:
            self._say("refused", message=str(error))
            return False
        engine.returncode = 0  # Collected by waitpid(-1) below; Popen must not wait for it.
        self._engine = engine.pid
        os.close(order["control"])
        process = processes.read(engine.pid)
        self._say("started", pid=engine.pid, start=process.start if process else 0)
        return True

    def _parent_gone(self) -> bool:
        # End-of-file is not enough: a process forked from the parent holds the other end too.
        return os.getppid() != int(self._order["parent"])

    def _wait(self, seconds: float) -> None:
        """Sleep until a signal, a word on the lifeline or the time is up."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if not self._told_end:
            poll.register(0, select.POLLIN)
        for fd, _ in poll.poll(seconds * 1000):
            try:
                data = os.read(fd, 4096)
            except BlockingIOError:
                continue
            if fd == 0:
                self._buffer += data
                self._told_end |= not data or _END in self._buffer

    def _collect(self) -> bool:
        """Collect all that ended; ``True`` when no child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self._engine and not self._exited:
                self._exited = True
                self._say("exited", code=os.waitstatus_to_exitcode(status), notes=self._notes())

    def _notes(self) -> int:
        """Bytes of death notes so far: what comes later was caused by our own signals."""
        try:
            return Path(self._order["notes"]).stat().st_size
        except OSError:
            return 0

    def _record_tree(self) -> None:
        """Leave the known descendants on disk, for the parent in case this program is killed."""
        now = time.monotonic()
        if now < self._next_look:
            return
        begun = time.thread_time()
        tree = processes.descendants([os.getpid()])
        known = len(self._shared)
        self._shared |= shared.used_by(process.pid for process in tree)
        self._tell_stopped(tree, now)
        if tree != self._tree or len(self._shared) > known:
            self._tree = tree
            self._write_tree()
        # At most 2 % of one core, however many processes the machine runs.
        self._next_look = now + max(_TICK_S, 50 * (time.thread_time() - begun))

    def _tell_stopped(self, tree: list[processes.Process], now: float) -> None:
        """Tell once of processes that SIGSTOP has halted for a while; a debugger's are ``t``."""
        halted = [process for process in tree if process.state == "T"]
        self._stopped = {process: self._stopped.get(process, now) for process in halted}
        late = [p for p, since in self._stopped.items() if 0 <= since <= now - _STOPPED_S]
        if late:
            self._say("stopped", processes=[process.to_json() for process in late])
            self._stopped |= dict.fromkeys(late, -1.0)

    def _write_tree(self) -> None:
        found = [process.to_json() for process in self._tree]
        text = json.dumps({"processes": found, "shared": sorted(self._shared)})
        path = Path(self._order["tree"])
        fresh = path.with_suffix(".new")
        # On a full disk the engine goes on: this is only read when this program is killed.
        with contextlib.suppress(OSError):
            fresh.write_text(text, "utf-8")
            fresh.replace(path)

    def _note_shared(self) -> None:
        known = len(self._shared)
        live = processes.descendants([os.getpid()])
        self._shared |= shared.used_by(process.pid for process in live)
        if len(self._shared) > known:
            self._write_tree()

    def _remove_shared(self) -> None:
        """Remove memory of processes that could not do it, once no process is left."""
        left = self._shared & set(shared.present())
        if left:
            shared.remove(left, in_use=shared.used_by(shared.everyone()))

    def _end_all(self) -> None:
        started = time.monotonic()
        kill_at = started + self._order["grace_s"]
        told: set[processes.Process] = set()
        others_gone_at: float | None = None
        complained = False
        while not self._collect():
            now = time.monotonic()
            live = [p for p in processes.descendants([os.getpid()]) if not p.ended]
            if now < kill_at:
                for process in live:
                    if process not in told:
                        told.add(process)
                        processes.send(process, signal.SIGTERM)
            else:
                others = [p for p in live if not processes.keeps(p)]
                if others:
                    others_gone_at = None
                elif others_gone_at is None:
                    others_gone_at = now
                late = others_gone_at is not None and now > others_gone_at + _KEEPER_S
                for process in live if late else others:
                    processes.send(process, signal.SIGKILL)
            if live and not complained and now > kill_at + _SURVIVOR_S:
                complained = True
                self._say("survivors", processes=[p.to_json() for p in live])
            self._wait(0.02 if now < kill_at + 1 else 0.2)

    def _say(self, event: str, **values: object) -> None:
        line = json.dumps({"event": event, **values}) + "\n"
        with contextlib.suppress(OSError):  # Perhaps nobody reads any more.
            os.write(self._status, line.encode())


def _read_order() -> tuple[dict[str, Any], bytes] | None:
    """Read the first line of the lifeline, and what came behind it; ``None`` at end-of-file."""
    data = b""
    while b"\n" not in data:
        more = os.read(0, 65536)
        if not more:
            return None
        data += more
    line, _, rest = data.partition(b"\n")
    order: dict[str, Any] = json.loads(line)
    return order, rest


def main() -> int:
    """Run the program; see the module's text."""
    received = _read_order()
    if received is None:
        return 1
    os.set_inheritable(received[0]["status"], False)
    return Reaper(*received).run()


if __name__ == "__main__":
    sys.exit(main())
