"""The host: one engine in a process of its own, from its start to its last descendant."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from harness.errors import EngineFailed, HarnessError, UsageError
from harness.host.conversation import Conversation, OnEvent
from harness.host.deaths import failures
from harness.host.launch import Launched
from harness.host.log import Log
from harness.host.spec import HostSpec
from harness.host.watch import Unwatched, Watcher

_NOBODY_S = 1.0


class Host:
    """An engine process that we own.

    A context manager: entering starts it, leaving ends it (orderly, or at once when an
    exception passes). A host that is not closed is ended when it is collected or when the
    interpreter exits, and by the reaper when this process is killed.

    After a failure the engine is ended and later calls fail at once, naming it. The one
    exception is an error that an operation foresaw (``OpError``): engine and host stay usable.

    Args:
        spec: What to start.
        watcher: Judges the engine while something is waited for; by default nobody does.
    """

    def __init__(self, spec: HostSpec, watcher: Watcher | None = None) -> None:
        self.spec = spec
        self._watcher: Watcher = Unwatched() if watcher is None else watcher
        self.hello: dict[str, Any] = {}
        self._launched: Launched | None = None
        self._conversation: Conversation | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None
        self._failure: HarnessError | None = None
        self._left: list[str] = []
        self._closed = False
        self._busy = threading.Lock()
        self._caller = 0

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
        """Pid of the engine; 0 when none was started."""
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

    def look(self) -> HarnessError | None:
        """Between two calls: what has ended the engine or one of its workers; None: nothing.

        A call that waits notices by itself; nothing is looked at then.
        """
        if self._conversation is None or not self._busy.acquire(blocking=False):
            return None
        try:
            if self._failure is None and not self._closed:
                death = self._conversation.look()
                if death is not None:
                    self._abandon(death)
            return self._failure
        finally:
            self._busy.release()

    def start(self, deadline_s: float = 60.0) -> dict[str, Any]:
        """Start the engine process and wait for its greeting; does nothing when it runs.

        Args:
            deadline_s: Seconds until the child must have said hello (before it imports an engine).

        Returns:
            The greeting: ``pid``, ``python``, ``protocol``.

        Raises:
            Refused: ``host.platform``, ``host.no-interpreter``, ``host.no-folder``, ``host.log``,
                ``host.no-room``.
            EngineFailed: ``host.start-failed``, ``host.deadline``, ``host.protocol``.
            UsageError: ``host.closed`` when it was closed before.
        """
        self._check_open()
        if self._launched is not None:
            return self.hello
        self.spec.check()
        log = Log(self.spec.log)
        launched = Launched(self.spec)
        self._launched = launched
        self._finalizer = weakref.finalize(self, launched.end)
        self._conversation = Conversation(self.spec, launched, log, self._watcher)
        try:
            self.hello = self._conversation.greet(deadline_s)
        except BaseException as error:
            self._abandon(error)
            self.close()
            raise
        return self.hello

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
                ``host.engine-died``, ``host.worker-died``, ``host.process-stopped``,
                ``host.reaper-died``, ``host.doomed``, ``host.protocol`` or
                ``host.failed-before``; ``details`` holds ``op``, ``seconds``, ``log_tail`` and,
                by case, ``exit_code``, ``signal``, ``notes``, ``stacks``, ``traceback``, and of
                a load ``phase``, ``expected_seconds``, ``saved_seconds``.
            UsageError: ``host.closed``, ``host.not-started``, ``host.busy``,
                ``host.bad-request``.
        """
        if not self._busy.acquire(blocking=False):
            raise self._usage("host.busy", "one call at a time", f"{op!r} while another one waits")
        self._caller = threading.get_ident()
        try:
            conversation = self._open_conversation()
            context = conversation.request(op, params or {})
            try:
                reply = conversation.reply(context, deadline_s, on_event)
            except EngineFailed as error:
                raise self._lost(error) from error.__cause__
            except BaseException as error:
                # Also an error of on_event and Ctrl-C: the rest of the reply would go astray.
                if not isinstance(error, Exception | KeyboardInterrupt | SystemExit):
                    conversation.leave_stacks()  # A time limit of the test that waits.
                self._abandon(error)
                raise
        finally:
            self._caller = 0
            self._busy.release()
        if reply.error is not None:
            raise reply.error
        return reply.result

    def close(self, deadline_s: float = 20.0) -> None:
        """Shut the engine down, end what is left, verify that nothing survives. Repeatable.

        A call that waits in another thread fails.

        Args:
            deadline_s: Seconds for the engine's own orderly shutdown; then the tree is ended.

        Raises:
            EngineFailed: ``host.survivors`` when a descendant could not be ended.
        """
        launched, conversation = self._launched, self._conversation
        if self._closed or launched is None or launched.owner != os.getpid():
            self._closed = True
            return
        mine = self._caller == threading.get_ident()
        idle = not mine and self._busy.acquire(blocking=False)
        if not idle:
            self._abandon()
            # The call ends as soon as the engine does, which the reaper sees to.
            idle = not mine and self._wait_for_caller(deadline_s)
        try:
            self._closed = True
            if self._failure is None and conversation is not None:
                conversation.shut_down(deadline_s)
        finally:
            if idle:
                self._busy.release()
            names = launched.end() or self._left
            # Not earlier: an interrupt in between leaves the rest to the interpreter's exit.
            if self._finalizer is not None:
                self._finalizer.detach()
        if names:
            raise failures.survivors(self.spec, names)

    def _wait_for_caller(self, seconds: float) -> bool:
        """Wait until the call of another thread is over.

        An interrupt may strike between taking the lock and noting who did, or between
        forgetting that and giving it back. Then there is no call, and nobody ever gives it back.
        """
        now = time.monotonic()
        until, lost_at = now + seconds, now + _NOBODY_S
        while not self._busy.acquire(timeout=0.05):
            now = time.monotonic()
            if self._caller:
                lost_at = now + _NOBODY_S
            if now > min(until, lost_at):
                return False
        return True

    def _lost(self, error: EngineFailed) -> HarnessError:
        """End the engine after a failed call; what the watcher knows goes into the error.

        One that was cut is waited for, until its processes are gone and its GPUs' memory is back.
        """
        facts = dict(self._watcher.failed(time.monotonic()))
        told = failures.extended(error, str(facts.pop("where", "")), facts)
        self._abandon(told)
        if told.failure.id != failures.DOOMED or self._launched is None:
            return told
        self._left = left = self._launched.end()
        after = f"not ended: {', '.join(left)}" if left else "its processes are gone"
        after = "; ".join(filter(None, [after, self._watcher.ended()]))
        self._failure = failures.extended(told, after, {"survivors": left, "after": after})
        return self._failure

    def _abandon(self, cause: BaseException | None = None) -> None:
        """Begin to end the engine without waiting; later calls name the cause."""
        if self._failure is None and self._launched is not None and not self._closed:
            self._failure = (
                cause if isinstance(cause, HarnessError) else failures.interrupted(self.spec)
            )
            self._launched.begin_end()

    def _open_conversation(self) -> Conversation:
        self._check_open()
        if self._conversation is None:
            raise self._usage("host.not-started", "start() before the first call", "a call")
        return self._conversation

    def _check_open(self) -> None:
        if self._failure is not None:
            raise failures.failed_before(self._failure)
        if self._closed:
            raise self._usage("host.closed", "an open host", "one that was closed")

    def _usage(self, id: str, expected: str, found: str) -> UsageError:
        next = "use the host as a context manager: every call inside the with block"
        return UsageError(id, expected=expected, found=found, where=self.spec.module, next=next)
