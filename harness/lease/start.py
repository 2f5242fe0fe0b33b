"""Start a lease: a keeper in a session of its own, and the wait until its engine is ready."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.errors import EngineFailed, HarnessError, Refused
from harness.extraction.options import EngineOptions
from harness.host import processes
from harness.lease import asked
from harness.lease.condition import judge
from harness.lease.files import package
from harness.lease.keeper import name_taken
from harness.lease.messages import error_from_json
from harness.lease.record import Book, Lease, check_name

OnLine = Callable[[str], None]

_TICK_S = 0.2
_GIVE_UP_S = 90.0
_TAIL = 20
# By `-c`, so that neither the working directory nor PYTHONPATH decides which harness it is. Where
# the package is installed its folder is there already, behind the standard library.
_PROGRAM = (
    "import sys; p = sys.argv[1]; p in sys.path or sys.path.insert(0, p); "
    "from harness.lease.keeper import main; sys.exit(main())"
)


def start(
    options: EngineOptions,
    *,
    name: str,
    seconds: float,
    spool: Path | None = None,
    wait: bool = True,
    on_line: OnLine | None = None,
    book: Book | None = None,
) -> Lease:
    """Start a leased engine.

    Args:
        options: How it is loaded; ``max_model_len`` None takes the fixtures' default.
        name: The lease's name.
        seconds: Until it ends by itself.
        spool: Folder below which its samples appear; by default the lease's own.
        wait: Return when it is ready; otherwise when its name is claimed.
        on_line: Hears of the engine's log while waiting.
        book: Where records lie.

    Returns:
        The lease: ``ready``, or ``loading`` without ``wait``.

    Raises:
        UsageError, Refused, NotComparable: As :func:`harness.extraction.plan.plan_engine`;
            ``lease.bad-name``, ``lease.name-taken``, ``lease.spool``.
        CheckFailed: ``canary.failed``.
        EngineFailed: It could not be loaded; ``lease.keeper-died``.
    """
    check_name(name)
    book = book or Book()
    other = book.read(name)
    if other is not None and judge(other).condition.live:
        raise name_taken(other)
    order = {
        "name": name,
        "seconds": seconds,
        "options": asked.to_json(options),
        "deadlines": asdict(options.deadlines),
        "spool": None if spool is None else str(spool.absolute()),
    }
    keeper, news = _spawn(order, book)
    try:
        _await(keeper, news, "ready" if wait else "claimed", on_line, book.home(name))
    except BaseException:
        # Also Ctrl-C: who waits for a load and gives up wants none.
        _give_up(keeper)
        raise
    finally:
        os.close(news)
    lease = book.read(name)
    if lease is None:
        raise _keeper_died("its record is gone", book.home(name))
    return lease


def _spawn(order: dict[str, Any], book: Book) -> tuple[subprocess.Popen[bytes], int]:
    reader, writer = os.pipe2(os.O_CLOEXEC)
    environment = {**os.environ, "HARNESS_STATE": str(book.folder.parent)}
    log = book.folder / f".{order['name']}.start"
    try:
        book.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with log.open("wb") as output:
            keeper = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, str(package().parent), str(writer)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=(writer,),
                cwd=os.sep,
                env=environment,
                start_new_session=True,
            )
    except OSError as error:
        os.close(reader)
        raise Refused(
            "state.unwritable",
            expected="a folder for the harness's own records",
            found=str(error.strerror or error),
            where=str(book.folder),
            next="name a folder that can be written: HARNESS_STATE=DIR",
        ) from error
    finally:
        os.close(writer)
    assert keeper.stdin is not None
    with contextlib.suppress(OSError), keeper.stdin as order_in:
        order_in.write(json.dumps(order).encode())
    return keeper, reader


def _await(
    keeper: subprocess.Popen[bytes], news: int, wanted: str, on_line: OnLine | None, home: Path
) -> None:
    """Read the keeper's news until the wanted one; hand on the engine's log meanwhile."""
    log = _Follow(home / "engine.log")
    started = home.parent / f".{home.name}.start"
    try:
        for event in _events(news, lambda: log.tell(on_line)):
            if event["event"] == "failed":
                keeper.wait(_GIVE_UP_S)
                raise error_from_json(event["error"])
            if event["event"] == "claimed":
                log.begin()
            if event["event"] == wanted:
                # It is nobody's child that must be waited for: it outlives this process.
                keeper.returncode = 0
                return
        keeper.wait(_GIVE_UP_S)
        raise _keeper_died(_tail(home / "keeper.log") or _tail(started), home)
    finally:
        started.unlink(missing_ok=True)


def _events(news: int, meanwhile: Callable[[], None]) -> Iterator[dict[str, Any]]:
    """Yield the events of a pipe until its other end is closed."""
    poll = select.poll()
    poll.register(news, select.POLLIN)
    rest = b""
    while True:
        ready = poll.poll(_TICK_S * 1000)
        meanwhile()
        if not ready:
            continue
        data = os.read(news, 65536)
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        yield from map(json.loads, lines)


def _give_up(keeper: subprocess.Popen[bytes]) -> None:
    """End a keeper whose load nobody waits for any more."""
    if keeper.returncode is not None:
        return
    process = processes.read(keeper.pid)
    if process is not None:
        processes.send(process, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        keeper.wait(_GIVE_UP_S)


class _Follow:
    """Hands on the whole lines that were added to a log since it began."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place: int | None = None
        self._next = 0.0

    def begin(self) -> None:
        """From now on; what an earlier lease left is gone."""
        self._place = 0

    def tell(self, on_line: OnLine | None) -> None:
        """Hand on what is new, a few times a second at most."""
        now = time.monotonic()
        if on_line is None or self._place is None or now < self._next:
            return
        self._next = now + _TICK_S
        try:
            with self._path.open("rb") as file:
                file.seek(self._place)
                data = file.read()
        except OSError:
            return
        whole = data.rfind(b"\n") + 1
        self._place += whole
        for line in data[:whole].decode("utf-8", "replace").splitlines():
            on_line(line)


def _keeper_died(said: str, home: Path) -> HarnessError:
    return EngineFailed(
        "lease.keeper-died",
        expected="a keeper that lives until its lease ends",
        found=said or "it ended without a word",
        where=str(home),
        next="harness engine status",
    )


def _tail(path: Path) -> str:
    try:
        lines = path.read_text("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    return "\n    | ".join(lines[-_TAIL:])
