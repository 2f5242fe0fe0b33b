"""Watch the child processes of this one and leave a note when one ends abnormally.

Usable in any process of the engine (the front end, ``EngineCore``, a test). The file
named by ``HARNESS_DEATH_NOTES`` gets one JSON line ``{"pid", "name", "exitcode",
"signal"}`` for each child whose exit code is not zero, and for each worker that leaves in
silence with zero; the host reads it and names the culprit, where the engine itself may only
say that something has died, or hang.

An engine has monitors of its own on the same ``Process`` objects, so this module looks
without touching: it waits on sentinels and reads the exit status without collecting it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import threading
import time
from multiprocessing import connection, process, util
from typing import Any

_TICK_S = 0.2
_PAUSE_S = 0.02
_COLLECTED_BY_OTHERS_S = 1.0
# By vLLM's names. Others, such as a helper that has done its work, may leave as they like.
_NEVER_LEAVE = ("VllmWorker", "Worker", "EngineCore")
_SILENCE_S = 0.5
_STDERR_FD = 2
_watchers: dict[int, list[Watcher]] = {}  # By process: a fork copies the list, not the threads.


def watch_children(path: str | None = None) -> Watcher:
    """Start a daemon thread that notes abnormal ends of this process's children.

    Children are those of :mod:`multiprocessing`, present and future; new ones are
    found within 0.2 s, and one that ends and is collected sooner is missed. Also registers
    :func:`stacks_on_signal`.

    Args:
        path: File to append to; by default the one named by ``HARNESS_DEATH_NOTES``. Without
            either nothing is written.
    """
    stacks_on_signal()
    watcher = Watcher(path or os.environ.get("HARNESS_DEATH_NOTES"))
    if os.getpid() not in _watchers:
        # multiprocessing's own exit handler ends daemonic children by SIGTERM; those
        # are no deaths. Its finalizers run before that, also in a child of its own.
        util.Finalize(None, stop, exitpriority=100)
    _watchers.setdefault(os.getpid(), []).append(watcher)
    watcher.start()
    return watcher


def stop() -> None:
    """Note nothing more in this process: an orderly shutdown begins."""
    for watcher in _watchers.get(os.getpid(), ()):
        watcher.stop()


def stacks_on_signal() -> None:
    """Let SIGUSR1 write the stacks of all threads to standard error, unless it is taken.

    It works while the process hangs in native code or holds the interpreter's lock.
    """
    with contextlib.suppress(ValueError, OSError, RuntimeError):
        if signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL:
            faulthandler.register(signal.SIGUSR1, file=_STDERR_FD, all_threads=True)


class Watcher:
    """The thread behind :func:`watch_children`."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._stopped = threading.Event()
        self._known: dict[int, Any] = {}
        self._ended: dict[int, Any] = {}
        self._silent: list[tuple[float, int, Any]] = []
        self._thread = threading.Thread(target=self._run, name="harness-deaths", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Note nothing more; the thread ends within 0.2 s."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._look_for_new()
            self._wait()
            self._note_silent()
            if not self._collect():
                # A sentinel can be ready while its child lives: it may have closed its files.
                self._stopped.wait(_PAUSE_S)

    def _wait(self) -> None:
        try:
            sentinels = [child.sentinel for child in self._known.values()]
            if sentinels:
                connection.wait(sentinels, timeout=_TICK_S)
                return
        except (OSError, ValueError):
            pass  # The engine closed one of them meanwhile.
        self._stopped.wait(_TICK_S)

    def _collect(self) -> bool:
        """Note and forget the children that ended; whether there were any."""
        ended = False
        for pid, child in list(self._known.items()):
            code = _exit_code(pid, child)
            if code is not None:
                ended = True
                # Its owner may not collect it for long: it would be found again as a new one.
                self._ended[pid] = self._known.pop(pid)
                if code != 0:
                    self._note(pid, child, code)
                elif child.name.startswith(_NEVER_LEAVE):
                    self._silent.append((time.monotonic() + _SILENCE_S, pid, child))
        return ended

    def _note_silent(self) -> None:
        """Note workers that left with code 0 some time ago, while their owner goes on.

        Not at once: an owner that fails ends its workers like this, and is itself the cause.
        """
        now = time.monotonic()
        for due, pid, child in list(self._silent):
            if now >= due:
                self._silent.remove((due, pid, child))
                self._note(pid, child, 0)

    def _look_for_new(self) -> None:
        # Not active_children(): that collects what has ended and forgets it, so a child
        # that died within a tick would never be seen here, nor by the engine's monitors.
        for child in list(getattr(process, "_children", ())):
            with contextlib.suppress(ValueError):
                if child.pid is not None and self._ended.get(child.pid) is not child:
                    self._known.setdefault(child.pid, child)

    def _note(self, pid: int, child: Any, code: int) -> None:
        if self._stopped.is_set() or not self._path:
            return
        note = {"pid": pid, "name": child.name, "exitcode": code, "signal": _signal_name(code)}
        with contextlib.suppress(OSError):
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(fd, (json.dumps(note) + "\n").encode())
            finally:
                os.close(fd)


def _exit_code(pid: int, child: Any) -> int | None:
    """Read how a child ended: negative for a signal; ``None`` while it lives."""
    try:
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return _collected_exit_code(child)
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def _collected_exit_code(child: Any) -> int:
    """Read the code that another thread collected, which it may be about to store."""
    deadline = time.monotonic() + _COLLECTED_BY_OTHERS_S
    while time.monotonic() < deadline:
        code = getattr(getattr(child, "_popen", None), "returncode", None)
        if code is not None:
            return int(code)
        time.sleep(0.01)
    try:
        return int(child.exitcode or 0)
    except ValueError:
        return 0  # The object was closed, which needs an end that somebody has looked at.


def _signal_name(code: int) -> str | None:
    if code >= 0:
        return None
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
