"""Start the reaper with an engine under it, and end both with everything below them."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from harness.errors import Refused
from harness.host import processes
from harness.host.ending.kill import kill_all
from harness.host.leftovers import private, shared
from harness.host.leftovers.record import TOKEN, Recorder, first_record
from harness.host.order import order_of
from harness.host.processes import Process
from harness.host.spec import HostSpec

_SWEEP_S = 5.0


class Launched:
    """One started reaper: its pipes, its private folder and what it says.

    Attributes:
        connection: The parent's end of the control socket; handed over to a channel.
        engine: The engine's process, once the reaper has said ``started``.
        exit_code: The engine's exit code, negative for a signal; ``None`` while it runs.
        notes_limit: Bytes of death notes that were there when the engine exited.
        stopped: Processes that somebody has halted with SIGSTOP.
        refusal: Why the engine could not be started, in the system's words.
        lost: The reaper went away without having ended the tree.
    """

    def __init__(self, spec: HostSpec) -> None:
        self.owner = os.getpid()
        self.engine: Process | None = None
        self.exit_code: int | None = None
        self.notes_limit: int | None = None
        self.refusal: str | None = None
        self.survivors: list[str] = []
        self.stopped: list[str] = []
        self.lost = False
        self._ended = False
        self._closed = False
        self._told = False
        self._grace_s = spec.grace_s
        self._buffer = b""
        self._lock = threading.Lock()
        self._token = secrets.token_hex(16)
        with _room():
            self.folder = private.make_folder()
        self.recorder = self._recorder(spec)
        try:
            with _room():
                self._open(spec)
        except BaseException:
            self.recorder.drop()
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def _recorder(self, spec: HostSpec) -> Recorder:
        owner = processes.read(self.owner) or Process(pid=self.owner, start=0)
        record = first_record(
            token=self._token,
            owner=owner,
            log=str(spec.log.absolute()),
            folder=str(self.folder),
            model=spec.model,
        )
        return Recorder(record)

    @property
    def notes(self) -> Path:
        """The file of death notes."""
        return self.folder / "deaths.jsonl"

    @property
    def status_fd(self) -> int:
        """The status pipe's number, for ``select``; -1 after its end."""
        return self._status

    @property
    def over(self) -> bool:
        """Whether the reaper is gone."""
        return self._status < 0

    def _open(self, spec: HostSpec) -> None:
        self.connection, theirs = socket.socketpair()
        self._status, status = os.pipe()
        try:
            self._start(spec, theirs.fileno(), status)
        except BaseException:
            os.close(self._status)
            self.connection.close()
            raise
        finally:
            theirs.close()
            os.close(status)

    def _start(self, spec: HostSpec, control: int, status: int) -> None:
        order = order_of(
            spec,
            self.folder,
            token=self._token,
            owner=self.recorder.record.owner,
            notes=self.notes,
            record=self.recorder.path,
            control=control,
            status=status,
        )
        reaper = Path(__file__).absolute().parent / "ending" / "reaper.py"
        with _open_log(spec.log) as log:
            self._reaper = subprocess.Popen(
                [sys.executable, "-I", "-S", str(reaper)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(control, status),
                start_new_session=True,
            )
        os.set_blocking(self._status, False)
        devices = order["env"].get("CUDA_VISIBLE_DEVICES")
        self.recorder.note(reaper=processes.read(self._reaper.pid), devices=devices)
        if self.recorder.problem:
            with _open_log(spec.log) as log:
                log.write(f"harness: no record of this engine: {self.recorder.problem}\n".encode())
        self._write(json.dumps(order).encode() + b"\n")

    def _write(self, data: bytes) -> None:
        lifeline = self._reaper.stdin
        assert lifeline is not None
        with contextlib.suppress(OSError, ValueError):
            lifeline.write(data)
            lifeline.flush()

    def listen(self) -> None:
        """Read what the reaper says, without blocking; from any thread."""
        with self._lock:
            self._listen()

    def wait_for_exit(self, seconds: float) -> None:
        """Wait at most ``seconds`` for the news that the engine has exited."""
        until = time.monotonic() + seconds
        while self.exit_code is None and not self.over and (left := until - time.monotonic()) > 0:
            _wait_readable(self._status, left)
            self.listen()

    def _listen(self) -> None:
        while not self.over:
            try:
                data = os.read(self._status, 65536)
            except BlockingIOError:
                return
            if not data:
                os.close(self._status)
                self._status = -1
                self.lost = not self._ended and self.refusal is None
                return
            self._buffer += data
            *lines, self._buffer = self._buffer.split(b"\n")
            for line in lines:
                self._hear(json.loads(line))

    def _hear(self, message: dict[str, Any]) -> None:
        event = message["event"]
        if event == "started":
            self.engine = Process(pid=message["pid"], start=message["start"], name="engine")
            self.recorder.note(engine=self.engine)
        elif event == "refused":
            self.refusal = message["message"]
        elif event == "exited":
            self.exit_code = message["code"]
            self.notes_limit = message["notes"]
        elif event == "stopped":
            self.stopped += _names(message["processes"])
        elif event == "survivors":
            self.survivors = _names(message["processes"])
        elif event == "ended":
            self._ended = True
            self.survivors = []

    def tree(self) -> list[Process]:
        """Return the engine and its descendants that still run.

        While the reaper lives this is all below it. After it, what it had left on disk, what
        carries our mark in its environment, and all below those.
        """
        found: set[Process] = set() if self.engine is None else {self.engine}
        if not self.over:
            found.update(processes.descendants([self._reaper.pid]))
        found.update(private.left_on_disk(self.folder)[0])
        found.update(processes.marked(f"{TOKEN}={self._token}"))
        running = [process for process in found if processes.alive(process)]
        below = processes.descendants([process.pid for process in running])
        return list(dict.fromkeys([*running, *(p for p in below if not p.ended)]))

    def dump_stacks(self) -> bool:
        """Ask every process of the tree that can to write its stacks; whether any can."""
        able = [p for p in self.tree() if processes.catches(p, signal.SIGUSR1)]
        asked = [processes.send(process, signal.SIGUSR1) for process in able]
        return any(asked)

    def begin_end(self) -> None:
        """Tell the reaper to end the tree; it needs no more help for that."""
        if self.lost:
            self._sweep()
        elif not self._told:
            self._told = True
            self._write(b"end\n")

    def end(self, deadline_s: float | None = None) -> list[str]:
        """End the tree, wait for that, and clean up.

        Args:
            deadline_s: Seconds for the reaper; then its work is done from here.

        Returns:
            What could not be ended: names with pids; normally nothing.
        """
        if self._closed or os.getpid() != self.owner:
            return []  # In a fork of the parent: not its engine, not its folder.
        self.begin_end()
        limit = self._grace_s + _SWEEP_S if deadline_s is None else deadline_s
        deadline = time.monotonic() + limit
        while not self.over and (left := deadline - time.monotonic()) > 0:
            _wait_readable(self._status, left)
            self.listen()
        left_over = [] if self.over and not self.lost else self._sweep()
        if self.over:
            self._reaper.wait()
        self._close(left_over)
        return left_over

    def _sweep(self) -> list[str]:
        """Kill what is left without the reaper's help, and a reaper that does not answer."""
        left = kill_all(self.tree, seconds=_SWEEP_S)
        if not left and not self.over:
            self._reaper.kill()
            self._reaper.wait()
            self.listen()
        return [f"{process.name} (pid {process.pid})" for process in left]

    def _close(self, left_over: list[str]) -> None:
        self._closed = True
        if not self.over:
            os.close(self._status)
            self._status = -1
        lifeline = self._reaper.stdin
        if lifeline is not None:
            with contextlib.suppress(OSError):
                lifeline.close()
        self.connection.close()
        if left_over:
            # Its folder knows the processes, and the record leads `harness reclaim` to both.
            self.recorder.note(left=tuple(left_over))
            return
        segments = private.left_on_disk(self.folder)[1]
        shared.remember(segments)
        if self.lost and segments:
            shared.remove(segments, in_use=shared.used_by(shared.everyone()))
        self.recorder.drop()
        shutil.rmtree(self.folder, ignore_errors=True)


def _names(told: list[dict[str, Any]]) -> list[str]:
    return [f"{process['name']} (pid {process['pid']})" for process in told]


@contextlib.contextmanager
def _room() -> Iterator[None]:
    """Say in our words that the machine has no room for one more process or folder."""
    try:
        yield
    except OSError as error:
        raise Refused(
            "host.no-room",
            expected="room for a private folder, a few open files and two processes",
            found=str(error),
            where=f"this machine ({tempfile.gettempdir()})",
            next="free disk space or raise the limit that is named (ulimit -a)",
        ) from error


def _wait_readable(fd: int, seconds: float) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.poll(seconds * 1000)


def _open_log(path: Path) -> IO[bytes]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab")
    except OSError as error:
        raise Refused(
            "host.log",
            expected="a log file that can be written",
            found=str(error.strerror or error),
            where=str(path),
            next="name another file or folder for the engine's log",
        ) from error
