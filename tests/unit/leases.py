"""Help for the leases' tests: a service with a stub for an engine, and leases on disk."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import engine_facts
from harness.engine_facts import Inspection
from harness.errors import EngineFailed, HarnessError
from harness.host import processes
from harness.host.processes import Process
from harness.host.record import this_machine
from harness.lease import address, record
from harness.lease.client import AttachedHost
from harness.lease.record import Book, Client, Lease
from harness.lease.service import End, Service


def facts_of(python: Path) -> Inspection:
    """What the stand-in would answer, without a process for each plan."""
    return engine_facts._parse((python.parent / "facts.json").read_text(), python)


class StubHost:
    """Stands where the engine's host would; ops do what their names say.

    Attributes:
        calls: Ops and parameters that arrived.
        gate: ``wait`` waits for it.
        inside: Set while a ``wait`` runs.
        death: What ``look`` finds.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.gate, self.inside = threading.Event(), threading.Event()
        self.death: HarnessError | None = None
        self.alive = True

    def look(self) -> HarnessError | None:
        return self.death

    def call(
        self,
        op: str,
        params: dict[str, Any],
        *,
        deadline_s: float,
        on_event: Callable[[dict[str, Any]], None] | None = None,
    ) -> dict[str, Any]:
        self.calls.append((op, params))
        assert on_event is not None
        if op == "count":
            for number in range(params["to"]):
                on_event({"event": "number", "number": number})
        if op == "extract":
            for sample in params["samples"]:
                on_event({"event": "sample", "key": sample["key"], "file": f"{sample['key']}.s"})
        if op == "wait":
            self.inside.set()
            self.gate.wait(10)
            on_event({"event": "sample", "key": "late"})
        if op == "foreseen":
            raise failure("engine.test", traceback="here", cause=ValueError())
        if op == "die":
            self.alive = False
            raise failure("host.engine-died", signal="SIGABRT", log_tail=["last words"])
        return {"op": op, "deadline_s": deadline_s}


def failure(id: str, **details: Any) -> EngineFailed:
    return EngineFailed(
        id, expected="one thing", found="another", where="there", next="go", **details
    )


def lease_in(folder: Path, **changes: Any) -> Lease:
    """Return a ready lease of this process, with its private folder."""
    home = Book(folder).home("one")
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    spool = home / "spool"
    spool.mkdir(exist_ok=True)
    values: dict[str, Any] = {
        "name": "one",
        "state": record.READY,
        "machine": this_machine(),
        "keeper": me(),
        "started": time.time(),
        "expires": time.time() + 60,
        "loaded": time.time(),
        "loads": 1,
        "folder": home,
        "spool": spool,
    }
    return Lease(**{**values, **changes})


def me() -> Process:
    found = processes.read(os.getpid())
    assert found is not None
    return Process(found.pid, found.start)


class Served:
    """A running service.

    Attributes:
        lease: Its lease.
        host: The stub.
        clients: What the record was told of clients.
        end: Why it ended, once it has.
    """

    def __init__(self, folder: Path, *, seconds: float = 60.0) -> None:
        self.book = Book(folder)
        self.lease = lease_in(folder)
        self.book.write(self.lease)
        self.host = StubHost()
        self.clients: list[tuple[int, Client | None]] = []
        self.end: End | None = None
        self._listener = address.listen(self.lease.folder)
        self.service = Service(
            self.host,
            self._listener,
            name="one",
            spool=self.lease.spool,
            expires=time.monotonic() + seconds,
            on_client=lambda number, client: self.clients.append((number, client)),
        )
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        end = self.service.serve()
        self.host.gate.set()  # As the end of a real engine ends the call that waits for it.
        self.service.close()
        self._listener.close()
        self.end = end

    def attached(self) -> AttachedHost:
        host = AttachedHost(self.lease, self.book)
        host.start(5)
        return host

    def ended(self) -> End:
        self._thread.join(5)
        assert self.end is not None
        return self.end

    def until(self, ready: Callable[[], object]) -> None:
        limit = time.monotonic() + 5
        while not ready():
            assert time.monotonic() < limit
            time.sleep(0.005)

    def close(self) -> None:
        self.host.gate.set()
        self.service.stop()
        self._thread.join(5)


@contextmanager
def served(folder: Path, **settings: Any) -> Iterator[Served]:
    one = Served(folder, **settings)
    try:
        yield one
    finally:
        one.close()
