"""The host: one engine in a child process, called over a local socket.

No thread is behind it: while a call waits, it watches the socket, the reaper's status
pipe and the death notes, so a death is noticed within a fraction of a second. Between
calls nothing is watched, and the next call (or ``alive``) finds out at once.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, NoReturn

from harness.errors import EngineFailed, HarnessError, Refused, UsageError
from harness.host.evidence import KEPT_LINES, SHOWN_LINES, DeathNotes, Log, exit_text, signal_name
from harness.host.launch import Launched
from harness.host.spec import HostSpec
from harness.host.wire import PROTOCOL, Channel, ProtocolError

_LOOK_S = 0.25
_CAUSE_S = 0.75
_STACKS_S = 1.0
OnEvent = Callable[[dict[str, Any]], None]


class Host:
    """An engine process that we own, from start to the end of its last descendant.

    A context manager: entering starts it, leaving ends it (orderly, or at once when an
    exception passes). A host that is not closed is ended when it is collected or when the
    interpreter exits, and by the reaper when this process is killed.

    After a failure the engine is ended and later calls fail at once, naming it. The one
    exception is an error that an operation foresaw (``OpError``): engine and host stay usable.

    Args:
        spec: What to start.
    """

    def __init__(self, spec: HostSpec) -> None:
        self.spec = spec
        self.hello: dict[str, Any] = {}
        self._log = Log(spec.log)
        self._launched: Launched | None = None
        self._channel: Channel | None = None
        self._notes: DeathNotes | None = None
        self._failure: HarnessError | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None
        self._doom: HarnessError | None = None
        self._closed = False
        self._number = 0
        self._started = 0.0
        self._next_look = 0.0
        self._busy = threading.Lock()

    def __enter__(self) -> Host:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._abandon()
        self.close()

    @property
    def pid(self) -> int:
        """Pid of the engine; 0 when it is not running."""
        engine = self._launched.engine if self._launched is not None else None
        return engine.pid if engine is not None else 0

    @property
    def alive(self) -> bool:
        """Whether a call can be made: started, not failed, and the engine has not exited."""
        launched = self._launched
        if launched is None or self._closed or self._failure is not None:
            return False
        launched.listen()
        return launched.exit_code is None and not launched.over

    def start(self, deadline_s: float = 60.0) -> dict[str, Any]:
        """Start the engine process and wait for its greeting; does nothing when it runs.

        Args:
            deadline_s: Seconds until the child must have said hello (before it imports an engine).

        Returns:
            The greeting: ``pid``, ``python``, ``protocol``.

        Raises:
            Refused: ``host.platform``, ``host.no-interpreter``, ``host.no-folder``, ``host.log``.
            EngineFailed: ``host.start-failed``, ``host.deadline``, ``host.protocol``.
            UsageError: ``host.closed`` when it was closed before.
        """
        self._check_open(started=False)
        if self._launched is not None:
            return self.hello
        self.spec.check()
        self._started = time.monotonic()
        launched = Launched(self.spec)
        self._launched = launched
        self._finalizer = weakref.finalize(self, launched.end)
        self._channel = Channel(launched.connection)
        self._notes = DeathNotes(launched.notes)
        try:
            hello = self._next_message("start", self._started + deadline_s)
            if hello.get("event") != "hello" or hello.get("protocol") != PROTOCOL:
                self._protocol_failed("start", f"another greeting: {str(hello)[:200]}")
        except BaseException:
            self._abandon()
            self.close()
            raise
        self.hello = hello
        return hello

    def call(
        self,
        op: str,
        params: Mapping[str, Any] | None = None,
        *,
        deadline_s: float,
        on_event: OnEvent | None = None,
    ) -> dict[str, Any]:
        """Run one operation in the engine and wait for its result.

        Args:
            op: Name of the operation.
            params: What it gets; must fit JSON.
            deadline_s: Seconds for the whole call, sending included.
            on_event: Called here, in order, with each event that the operation sends
                (``event`` and its fields). If it raises, the engine is ended and the error goes on.

        Returns:
            The operation's result.

        Raises:
            EngineFailed: The operation's own id, ``engine.error``, ``host.deadline``,
                ``host.engine-died``, ``host.worker-died``, ``host.reaper-died`` or
                ``host.protocol``; ``details`` holds ``op``, ``seconds``, ``log_tail`` and,
                by case, ``exit_code``, ``signal``, ``notes``, ``traceback``.
            UsageError: ``host.closed``, ``host.not-started``, ``host.busy``,
                ``host.bad-request``.
        """
        if not self._busy.acquire(blocking=False):
            raise UsageError(
                "host.busy",
                expected="one call at a time",
                found=f"a call of {op!r} while another one waits",
                where="this host",
                next="make the call after the other one has returned, or start another host",
            )
        try:
            self._check_open(started=True)
            return self._call(op, params or {}, deadline_s, on_event)
        finally:
            self._busy.release()

    def close(self, deadline_s: float = 20.0) -> None:
        """Shut the engine down, end what is left, verify that nothing survives. Repeatable.

        Args:
            deadline_s: Seconds for the engine's own orderly shutdown; then the tree is ended.

        Raises:
            EngineFailed: ``host.survivors`` when a descendant could not be ended.
        """
        launched = self._launched
        if self._closed or launched is None or launched.owner != os.getpid():
            self._closed = True
            return
        self._closed = True
        try:
            if self._failure is None:
                self._shut_down(deadline_s)
        finally:
            assert self._finalizer is not None
            self._finalizer.detach()
            survivors = launched.end()
        if survivors:
            raise EngineFailed(
                "host.survivors",
                expected="no process of the engine is left",
                found=", ".join(survivors),
                where=str(self.spec.log),
                next="they cannot be killed (a stuck driver or disk); look at them with ps",
            )

    def _shut_down(self, deadline_s: float) -> None:
        """Ask for an orderly end; an engine that does not obey is ended by the reaper."""
        launched, channel = self._launched, self._channel
        assert launched is not None
        assert channel is not None
        deadline = time.monotonic() + deadline_s
        self._number += 1
        channel.put({"id": self._number, "op": "shutdown", "params": {}})
        with contextlib.suppress(ProtocolError):
            while launched.exit_code is None and not launched.over:
                left = deadline - time.monotonic()
                if left <= 0 or (channel.ended and left > _CAUSE_S):
                    break
                self._pump(min(left, _LOOK_S))

    def _call(
        self, op: str, params: Mapping[str, Any], deadline_s: float, on_event: OnEvent | None
    ) -> dict[str, Any]:
        assert self._channel is not None
        self._started = time.monotonic()
        self._number += 1
        try:
            self._channel.put({"id": self._number, "op": op, "params": dict(params)})
        except (ProtocolError, TypeError, ValueError) as error:
            raise UsageError(
                "host.bad-request",
                expected="parameters that fit one JSON message",
                found=str(error),
                where=f"op {op}",
                next="send tensors and long lists by file",
            ) from error
        try:
            reply = self._converse(op, self._started + deadline_s, on_event)
            if "result" in reply:
                return dict(reply["result"])
            failure = self._error_reply(op, reply["error"])
            if not reply["error"].get("foreseen"):
                self._fail(self._cause_of(failure))
        except BaseException:
            # Also an error of on_event and Ctrl-C: the rest of the reply would go astray.
            self._abandon()
            raise
        raise failure

    def _converse(self, op: str, deadline: float, on_event: OnEvent | None) -> dict[str, Any]:
        """Hand on events until the reply comes; it holds ``result`` or ``error``."""
        while True:
            message = self._next_message(op, deadline)
            if message.get("id") != self._number:
                self._protocol_failed(op, f"a message of another call: {str(message)[:200]}")
            if "event" in message:
                if on_event is not None:
                    on_event({key: value for key, value in message.items() if key != "id"})
            elif any(isinstance(message.get(key), dict) for key in ("result", "error")):
                return message
            else:
                self._protocol_failed(op, f"neither result nor error: {str(message)[:200]}")

    def _next_message(self, op: str, deadline: float) -> dict[str, Any]:
        """Wait for one message; raise what ended the engine, once all before it was handed on."""
        assert self._channel is not None
        while True:
            now = time.monotonic()
            if self._doom is None and now >= self._next_look:
                self._next_look = now + _LOOK_S
                self._doom = self._find_death(op)
            message = self._channel.take()
            late = now >= deadline
            if message is not None and not (late and "event" in message):
                return message
            if self._doom is not None:
                self._fail(self._doom)
            if late:
                self._fail(self._deadline_error(op))
            try:
                self._pump(min(deadline - now, _LOOK_S))
            except ProtocolError as error:
                self._protocol_failed(op, str(error))

    def _pump(self, seconds: float) -> None:
        """Move bytes between the pipes and this object for at most ``seconds``."""
        channel, launched = self._channel, self._launched
        assert channel is not None
        assert launched is not None
        reading: list[Any] = [] if channel.ended else [channel]
        if not launched.over:
            reading.append(launched.status_fd)
        readable, _, _ = select.select(reading, [channel] if channel.pending else [], [], seconds)
        if channel.pending:
            channel.flush()
        if channel in readable:
            channel.fill()
        elif readable or channel.ended:
            # The reaper has news, or the engine hung up: look now.
            self._next_look = 0.0

    def _find_death(self, op: str) -> HarnessError | None:
        """Look at the status pipe, the notes and the socket; what they say has died."""
        launched, channel, notes = self._launched, self._channel, self._notes
        assert launched is not None
        assert channel is not None
        assert notes is not None
        launched.listen()
        if channel.ended and launched.exit_code is None and not launched.over:
            self._wait_for_exit()
        gone = launched.exit_code is not None or launched.over
        if gone:
            with contextlib.suppress(ProtocolError):
                channel.fill()
        workers = notes.read(launched.notes_limit)
        if workers:
            return self._engine_failed(
                op,
                "host.worker-died",
                expected="every worker of the engine lives until shutdown",
                found="; ".join(map(str, workers)),
                exit_code=workers[0].exitcode,
                signal=signal_name(workers[0].exitcode),
                notes=[str(note) for note in workers],
            )
        if launched.exit_code is not None:
            code = launched.exit_code
            return self._engine_failed(
                op,
                "host.start-failed" if op == "start" else "host.engine-died",
                expected="the engine says hello" if op == "start" else "the engine lives",
                found=exit_text(code),
                exit_code=code,
                signal=signal_name(code),
            )
        if launched.refusal is not None:
            return Refused(
                "host.no-interpreter",
                expected="a Python interpreter that can be started",
                found=launched.refusal,
                where=str(self.spec.python),
                next="name the environment's own bin/python",
            )
        if launched.over:
            return self._engine_failed(
                op,
                "host.reaper-died",
                expected="the process between harness and engine lives",
                found="it was killed; the engine has been ended with it",
            )
        if channel.ended:
            return self._engine_failed(
                op,
                "host.protocol",
                expected="an open control socket",
                found="the engine closed it but goes on running",
            )
        return None

    def _wait_for_exit(self) -> None:
        """The engine hung up: its exit code follows within moments, if it died."""
        launched = self._launched
        assert launched is not None
        until = time.monotonic() + _CAUSE_S
        while launched.exit_code is None and not launched.over:
            left = until - time.monotonic()
            if left <= 0:
                return
            select.select([launched.status_fd], [], [], left)
            launched.listen()

    def _error_reply(self, op: str, reply: Mapping[str, Any]) -> HarnessError:
        """Turn the child's error into ours."""
        found = f"{reply.get('type', 'error')}: {reply.get('message', '')}"
        facts = {
            "id": str(reply.get("id", "engine.error")),
            "expected": str(reply.get("expected", f"op {op} returns a result")),
            "found": str(reply.get("found", found)),
            "where": str(reply.get("where", f"op {op} in the engine (pid {self.pid})")),
            "next": str(reply.get("next", f"read the traceback and {self.spec.log}")),
        }
        return EngineFailed(
            **facts,
            op=op,
            seconds=time.monotonic() - self._started,
            traceback=reply.get("traceback"),
            type=reply.get("type"),
            log_tail=self._log.tail(KEPT_LINES),
        )

    def _cause_of(self, error: HarnessError) -> HarnessError:
        """Prefer the death behind an error: an engine says "dead" before a note says who."""
        until = time.monotonic() + _CAUSE_S
        while (left := until - time.monotonic()) > 0:
            cause = self._find_death(str(error.details["op"]))
            if cause is not None:
                cause.details["traceback"] = error.details["traceback"]
                return cause
            time.sleep(min(left, 0.05))
        return error

    def _deadline_error(self, op: str) -> HarnessError:
        launched = self._launched
        assert launched is not None
        tail, mark = self._log.tail(KEPT_LINES), self._log.size()
        stacks: list[str] = []
        if self.hello and launched.dump_stacks():
            stacks = self._log.settled(mark, _STACKS_S)
        seconds = time.monotonic() - self._started
        return self._engine_failed(
            op,
            "host.deadline",
            expected=f"op {op} ends within its deadline",
            found=f"still running after {seconds:.1f} s"
            + (", its stacks are at the end of the log" if stacks else ""),
            tail=tail,
            stacks=stacks,
        )

    def _engine_failed(
        self,
        op: str,
        id: str,
        *,
        expected: str,
        found: str,
        tail: list[str] | None = None,
        **details: Any,
    ) -> HarnessError:
        seconds = time.monotonic() - self._started
        lines = self._log.tail(KEPT_LINES) if tail is None else tail
        shown = "".join(f"\n    | {line}" for line in lines[-SHOWN_LINES:])
        return EngineFailed(
            id,
            expected=expected,
            found=f"{found}; last log lines:{shown}" if shown else f"{found}; the log is empty",
            where=f"op {op} after {seconds:.1f} s, engine pid {self.pid}, {self.spec.module}",
            next=f"read {self.spec.log}",
            op=op,
            seconds=seconds,
            log_tail=lines,
            **details,
        )

    def _protocol_failed(self, op: str, found: str) -> NoReturn:
        self._fail(
            self._engine_failed(
                op,
                "host.protocol",
                expected=f"messages of protocol {PROTOCOL}, one JSON object a line",
                found=found,
            )
        )

    def _fail(self, error: HarnessError) -> NoReturn:
        self._abandon(error)
        raise error

    def _abandon(self, error: HarnessError | None = None) -> None:
        """Begin to end the engine without waiting; later calls name ``error``."""
        if self._failure is None and self._launched is not None and not self._closed:
            self._failure = error or EngineFailed(
                "host.interrupted",
                expected="a call runs to its end",
                found="it was left by an interrupt or an error of the caller",
                where=self.spec.module,
                next="start another host",
            )
            self._launched.begin_end()

    def _check_open(self, *, started: bool) -> None:
        if self._failure is not None:
            raise EngineFailed(
                "host.failed-before",
                expected="an engine that runs",
                found=f"it was ended after {self._failure.failure.id}",
                where=self._failure.failure.where,
                next="start another host; the first failure is the one to look at",
                cause=self._failure,
            )
        if self._closed:
            raise UsageError(
                "host.closed",
                expected="an open host",
                found="it was closed",
                where=self.spec.module,
                next="start another host",
            )
        if started and self._launched is None:
            raise UsageError(
                "host.not-started",
                expected="start() before the first call",
                found="a call",
                where=self.spec.module,
                next="use the host as a context manager, or call start()",
            )
