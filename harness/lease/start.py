"""Start a lease: a keeper in a session of its own, and the wait until its engine is ready."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from harness.errors import EngineFailed, HarnessError, Refused
from harness.extraction.options import EngineOptions
from harness.host import processes
from harness.host.supervision.policy import LoadProgress
from harness.lease import asked
from harness.lease.files import package
from harness.lease.messages import error_from_json
from harness.lease.record import Book, Lease, check_name
from harness.lease.refusals import require_free

_GIVE_UP_S = 90.0
_TAIL = 20
# By `-c`, so that neither the working directory nor PYTHONPATH decides which harness it is. Where
# the package is installed its folder is there already, behind the standard library.
_PROGRAM = (
    "import sys; p = sys.argv[1]; p in sys.path or sys.path.insert(0, p); "
    "from harness.lease.keeper import main; sys.exit(main())"
)


class LoadObserver(Protocol):
    """Hears of a load while ``start`` waits for it."""

    def loading(self, progress: LoadProgress) -> None:
        """So far it is."""

    def warning(self, text: str) -> None:
        """Something is not as it should be."""


def start(
    options: EngineOptions,
    *,
    name: str,
    seconds: float,
    spool: Path | None = None,
    wait: bool = True,
    skip_checks: Collection[str] = (),
    trust_remote_code: bool = False,
    observer: LoadObserver | None = None,
    book: Book | None = None,
) -> Lease:
    """Start a leased engine.

    Args:
        options: How it is loaded; ``max_model_len`` None takes the fixtures' default.
        name: The lease's name.
        seconds: Until it ends by itself.
        spool: Folder below which its samples appear; by default the lease's own.
        wait: Return when it is ready; otherwise when its name is claimed.
        skip_checks: Checks of preflight that are left out before a load onto GPUs.
        trust_remote_code: Let code that lies in the checkpoint run, where the engine would.
        observer: Hears of the load while waiting.
        book: Where records lie.

    Returns:
        The lease: ``ready``, or ``loading`` without ``wait``.

    Raises:
        UsageError, Refused, NotComparable: As :func:`harness.extraction.plan.plan_engine`;
            ``lease.bad-name``, ``lease.name-taken``, ``lease.unreadable``, ``lease.spool``,
            ``lease.remote-code``, ``preflight.dirty``.
        CheckFailed: ``canary.failed``.
        EngineFailed: It could not be loaded; ``lease.keeper-died``.
    """
    check_name(name)
    book = book or Book()
    require_free(name, book)
    order = {
        "name": name,
        "seconds": seconds,
        "options": asked.to_json(options),
        "deadlines": asdict(options.deadlines),
        "spool": None if spool is None else str(spool.absolute()),
        "skip_checks": list(skip_checks),
        "trust_remote_code": trust_remote_code,
        "skip_gate": options.skip_gate,
    }
    keeper, news = _spawn(order, book)
    try:
        _await(keeper, news, "ready" if wait else "claimed", observer, book.home(name))
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
    keeper: subprocess.Popen[bytes],
    news: int,
    wanted: str,
    observer: LoadObserver | None,
    home: Path,
) -> None:
    """Read the keeper's news until the wanted one."""
    started = home.parent / f".{home.name}.start"
    try:
        for event in _events(news):
            if event["event"] == "failed":
                keeper.wait(_GIVE_UP_S)
                raise error_from_json(event["error"])
            if event["event"] == wanted:
                # It is nobody's child that must be waited for: it outlives this process.
                keeper.returncode = 0
                return
            if event["event"] == "progress" and observer is not None:
                observer.loading(LoadProgress(**event["progress"]))
            if event["event"] == "warning" and observer is not None:
                observer.warning(event["text"])
        keeper.wait(_GIVE_UP_S)
        raise _keeper_died(_tail(home / "keeper.log") or _tail(started), home)
    finally:
        started.unlink(missing_ok=True)


def _events(news: int) -> Iterator[dict[str, Any]]:
    """Yield the events of a pipe until its other end is closed."""
    rest = b""
    while data := os.read(news, 65536):
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
