"""Help for the leases' tests: a service with a stub for an engine, and leases on disk."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from harness import engine_facts, state
from harness.capture.session import Deadlines
from harness.engine_facts import Inspection
from harness.errors import EngineFailed, HarnessError
from harness.extraction import EngineOptions
from harness.host import processes
from harness.host.leftovers.record import this_machine
from harness.host.processes import Process
from harness.lease import address, asked, files, keeper, record
from harness.lease.client import AttachedHost
from harness.lease.condition import Condition, judge
from harness.lease.record import Book, Client, Lease
from harness.lease.service import End, Service
from harness.lease.start import start
from harness.lease.stop import stop
from tests.unit.interpreters import StandIn


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


class Box:
    """A state folder, a model and a stand-in for an interpreter with vLLM."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder, self.model = folder, model
        self.python = StandIn(folder / "vllm")
        self.book = Book(folder / "state")
        self._held: list[tuple[keeper.Keeper, threading.Thread]] = []

    def options(self, **changes: Any) -> EngineOptions:
        values = {"model": self.model, "layers": "1,3,4", "python": self.python.python, **changes}
        return EngineOptions(**values)

    def start(self, name: str = "one", *, seconds: float = 300.0, **settings: Any) -> Lease:
        """Start a keeper in a process of its own, as the command does."""
        changes = settings.pop("options", {})
        return start(
            self.options(**changes), name=name, seconds=seconds, book=self.book, **settings
        )

    def hold(self, name: str = "one", *, seconds: float = 300.0, **changes: Any) -> Lease:
        """Run a keeper in a thread, which saves half a second, and wait as ``start`` does."""
        news, writer = os.pipe()
        options = self.options(**changes)
        order = {
            "name": name,
            "seconds": seconds,
            "options": asked.to_json(options),
            "deadlines": asdict(Deadlines()),
            "spool": None,
            "skip_checks": [],
            "trust_remote_code": False,
            "skip_gate": options.skip_gate,
        }
        one = keeper.Keeper(order, keeper.News(writer), self.book)
        failures: list[BaseException] = []

        def run() -> None:
            try:
                one.run()
            except BaseException as error:
                failures.append(error)
            one._news.close()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self._held.append((one, thread))
        while os.read(news, 65536):
            pass
        os.close(news)
        if failures or not (lease := self.book.read(name)):
            thread.join(10)
            raise failures[0]
        return lease

    def expire(self) -> None:
        """Let the time of the last keeper in a thread be over."""
        service = self._held[-1][0]._service
        assert service is not None
        service._expires = time.monotonic()

    def judged(self, name: str = "one") -> Any:
        lease = self.book.read(name)
        assert lease is not None
        return judge(lease)

    def until(self, condition: Condition, name: str = "one") -> None:
        limit = time.monotonic() + 10
        while self.judged(name).condition is not condition:
            assert time.monotonic() < limit, self.judged(name)
            time.sleep(0.01)

    def tree(self, lease: Lease) -> list[Process]:
        """The engine, what is below it, and the reaper above it."""
        assert lease.engine is not None
        engine = processes.read(lease.engine.pid)
        assert engine is not None
        reaper = processes.read(engine.parent)
        assert reaper is not None
        return [reaper, engine, *processes.descendants([engine.pid])]

    def files(self) -> list[str]:
        """What lies in the state folder, but for the lock and how long loads have taken."""
        root = self.book.folder.parent
        found = (str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())
        return sorted(n for n in found if n != "leases/.lock" and not n.startswith("loads/"))

    def end(self) -> None:
        for one, thread in self._held:
            one.stop()
            thread.join(10)
        for lease in self.book.all():
            if lease.keeper.pid != os.getpid():
                stop(lease.name, force=True, book=self.book)
        assert not self.python.running()


@contextmanager
def box_in(folder: Path, model: Path) -> Iterator[Box]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(state.VARIABLE, str(folder / "state"))
        patch.setattr("harness.extraction.plan.inspect", facts_of)
        patch.setattr(keeper, "_print_into", lambda path: None)
        # Somebody may be working on the very files while these tests run.
        code, patches = files.code_digests(), files.patch_digests()
        patch.setattr(files, "code_digests", lambda: code)
        patch.setattr(files, "patch_digests", lambda: patches)
        one = Box(folder, model)
        yield one
        one.end()
