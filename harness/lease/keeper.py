"""The process that holds a lease: loads the engine, proves it, serves clients, ends it all.

``start`` runs it detached, in a session of its own, with the order on standard input and the
number of a pipe for news as its argument. It is the engine's parent, so whatever ends it ends
the engine (``harness/host/ending/reaper.py``).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from harness.capture.protocol import Loaded
from harness.capture.session import Deadlines, EngineSession
from harness.errors import HarnessError, Refused
from harness.extraction import open_session
from harness.extraction.clean import require_clean
from harness.extraction.plan import EnginePlan
from harness.host import Host, processes
from harness.host.leftovers.record import this_machine
from harness.host.processes import Process
from harness.host.supervision.policy import (
    DEFAULT_ACTIONS,
    Action,
    Danger,
    Supervision,
)
from harness.lease import address, asked, record
from harness.lease.identity import Identity, identity_of
from harness.lease.messages import error_to_json
from harness.lease.news import News
from harness.lease.place import forget, own_folder
from harness.lease.record import Book, Lease
from harness.lease.refusals import changed, not_loaded, require_free, untrusted
from harness.lease.service import End, Service

LOCK_S = 10.0
_TICK_S = 0.2


class Keeper:
    """One lease from its claim to its end.

    Args:
        order: ``name``, ``seconds``, ``options``, ``deadlines``, ``spool`` (a folder, or None),
            ``skip_checks`` (of preflight), ``trust_remote_code``, ``skip_gate``.
        news: Hears of ``claimed``, ``progress``, ``warning``, ``ready`` and ``failed``.
        book: Where records lie.
    """

    def __init__(self, order: Mapping[str, Any], news: News, book: Book) -> None:
        self._news, self._book = news, book
        self._expires = time.monotonic() + float(order["seconds"])
        self._stopped = threading.Event()
        self._service: Service | None = None
        self._skip_checks = tuple(order["skip_checks"])
        self._trusts = bool(order["trust_remote_code"])
        self._skip_gate = bool(order["skip_gate"])
        self._deadlines = Deadlines(**order["deadlines"])
        home = book.home(order["name"])
        base = order["spool"]
        self._lease = Lease(
            name=order["name"],
            state=record.LOADING,
            keeper=_this_process(),
            started=time.time(),
            expires=time.time() + float(order["seconds"]),
            folder=home,
            spool=home / "spool" if base is None else Path(base) / f"harness-{order['name']}",
            owner=record.this_user(),
            machine=this_machine(),
            options=order["options"],
            devices=os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        )

    def stop(self, *_: object) -> None:
        """End the lease soon; also a signal handler."""
        self._stopped.set()
        if self._service is not None:
            self._service.stop()

    def run(self) -> None:
        """Hold the lease until its end.

        Raises:
            HarnessError: It did not come to be; its record says so, unless the name was taken.
        """
        options = asked.from_json(self._lease.options, self._deadlines, skip_gate=self._skip_gate)
        plan = asked.plan_for(options, self._lease.spool)
        options = replace(options, max_model_len=plan.options.max_model_len)
        self._lease = replace(
            self._lease,
            options=asked.to_json(options),
            capture=plan.session.name,
            depths=plan.layers.depths if plan.layers else (),
            devices=self._lease.devices and f"CUDA_VISIBLE_DEVICES={self._lease.devices}",
        )
        if plan.recipe.engine_args.get("trust_remote_code") and not self._trusts:
            raise untrusted(plan)
        identity = identity_of(plan)
        # A look at the GPUs takes a second: who asks for a name that is taken is told before.
        require_free(self._lease.name, self._book)
        require_clean(plan, skip=self._skip_checks)
        self._claim(identity)
        session = open_session(plan, log=self._lease.log, supervision=self._supervision())
        try:
            end = self._hold(session, plan, identity)
        except HarnessError as error:
            self._end(session, record.ENDED, f"{error.failure.id}: {_line(error)}")
            raise
        except BaseException as error:
            self._end(session, record.ENDED, f"{type(error).__name__}: {error}")
            raise
        kinds = {"expired": record.EXPIRED}
        self._end(session, kinds.get(end.kind, record.ENDED), end.reason)

    def _supervision(self) -> Supervision:
        return Supervision(
            # No session could use an engine whose files are not those that it was loaded from.
            actions={**DEFAULT_ACTIONS, Danger.CODE: Action.KILL},
            on_progress=self._news.progress,
            on_warning=self._news.warning,
        )

    # Beginning.

    def _claim(self, identity: Identity) -> None:
        """Take the name, or refuse; what an ended lease of this name left is cleared."""
        book, lease = self._book, self._lease
        book.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(book.lock, timeout=LOCK_S):
            require_free(lease.name, book)
            if (other := book.read(lease.name)) is not None:
                forget(other, book)
            shutil.rmtree(lease.folder, ignore_errors=True)
            try:
                lease.folder.mkdir(mode=0o700)
                lease.identity.write_text(json.dumps(identity.to_json()), "utf-8")
                own_folder(lease.spool)
                book.write(lease)
            except BaseException:
                shutil.rmtree(lease.folder, ignore_errors=True)
                raise
        self._news.say("claimed", log=str(lease.log))
        _print_into(lease.keeper_log)

    def _hold(self, session: EngineSession, plan: EnginePlan, identity: Identity) -> End:
        if (end := self._load(session)) is not None:
            if end.kind != "stopped":
                raise not_loaded(end.reason, self._lease)
            return end
        loaded, host = session.loaded, session.host
        assert loaded is not None
        assert isinstance(host, Host)
        differing = [one for one in identity.differences(identity_of(plan)) if one.in_engine]
        if differing:
            raise changed(list(map(str, differing)), self._lease)
        engine = processes.read(host.pid)
        with contextlib.closing(address.listen(self._lease.folder)) as listener:
            self._lease = self._book.change(
                self._lease,
                state=record.READY,
                engine=engine and Process(engine.pid, engine.start),
                loaded=time.time(),
                loads=session.loads,
                reply=loaded_to_json(loaded),
                devices=self._lease.devices or _devices(loaded),
            )
            self._news.say("ready")
            self._news.close()
            service = Service(
                host,
                listener,
                name=self._lease.name,
                spool=self._lease.spool,
                expires=self._expires,
                on_client=self._note_client,
            )
            self._service = service
            if self._stopped.is_set():
                service.stop()
            return service.serve()

    def _load(self, session: EngineSession) -> End | None:
        """Load and prove in a thread, so that a stop or the clock can cut it; None: loaded."""
        failure: list[BaseException] = []

        def load() -> None:
            try:
                session.load()
                session.require_proof()
            except BaseException as error:
                failure.append(error)

        thread = threading.Thread(target=load, name="hs-load", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(_TICK_S)
            if self._stopped.is_set():
                return End("stopped", "it was stopped while it loaded")
            if time.monotonic() >= self._expires:
                return End("expired", "its time was over before it was loaded")
        if failure:
            raise failure[0]
        return None

    def _note_client(self, sessions: int, client: record.Client | None) -> None:
        with contextlib.suppress(Refused):  # A full disk: the record is late, the engine is not.
            self._lease = self._book.change(self._lease, sessions=sessions, client=client)

    # The end.

    def _end(self, session: EngineSession, state: str, reason: str) -> None:
        """End the engine, remove what is left, and say in the record why."""
        left = ""
        try:
            session.close()
        except HarnessError as error:
            left = f"; still there: {error.failure.found}"
        if self._service is not None:
            self._service.close()
        shutil.rmtree(self._lease.spool, ignore_errors=True)
        with contextlib.suppress(OSError):
            (self._lease.folder / address.SOCKET).unlink(missing_ok=True)
        with contextlib.suppress(Refused):
            self._book.change(self._lease, state=state, reason=reason + left, client=None)


def loaded_to_json(loaded: Loaded) -> dict[str, Any]:
    """Return what an engine said after its load as a JSON object."""
    return {
        "versions": dict(loaded.versions),
        "resolved": dict(loaded.resolved),
        "workers": [dict(worker) for worker in loaded.workers],
        "seconds": dict(loaded.seconds),
    }


def _devices(loaded: Loaded) -> str:
    named = (str(worker["device"]) for worker in loaded.workers if "device" in worker)
    return ", ".join(dict.fromkeys(named))


def _this_process() -> Process:
    process = processes.read(os.getpid())
    assert process is not None
    return Process(process.pid, process.start)


def _print_into(path: Path) -> None:
    """Send what this process prints into a file from now on."""
    with path.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def _line(error: HarnessError) -> str:
    return (error.failure.found.splitlines() or [""])[0].removesuffix("; last log lines:")


def main() -> int:
    """Read the order and hold the lease."""
    news = News(int(sys.argv[-1]))
    order = json.load(sys.stdin)
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    keeper = Keeper(order, news, Book())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, keeper.stop)
    signal.signal(signal.SIGHUP, lambda *_: None)
    try:
        keeper.run()
    except HarnessError as error:
        news.say("failed", error=error_to_json(error))
        return int(error.exit_code)
    finally:
        news.close()
    return 0
