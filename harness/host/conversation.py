"""The talk with one running engine, while watching that it lives.

No thread is behind it: whoever waits for a message watches the socket, the reaper's
status pipe and the death notes, so a death is noticed within a fraction of a second.
"""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.errors import EngineFailed, HarnessError, UsageError
from harness.host.deaths.failures import Context
from harness.host.deaths.notes import DeathNotes
from harness.host.deaths.stacks import spy
from harness.host.launch import Launched
from harness.host.leftovers.private import left_on_disk
from harness.host.log import Log
from harness.host.spec import HostSpec
from harness.host.watch import Call, Unwatched, Watcher
from harness.host.wire import PROTOCOL, Channel, ProtocolError

_LOOK_S = 0.25
_CAUSE_S = 0.75
_STACKS_S = 1.0

OnEvent = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Reply:
    """How a call ended with the engine still usable: a result, or an error that it foresaw."""

    result: dict[str, Any]
    error: EngineFailed | None = None


class Conversation:
    """Requests, events and replies, one call after the other.

    Args:
        spec: What was started.
        launched: The running reaper and engine.
        log: The engine's log, opened before the start.
        watcher: Looks whenever something is waited for.
    """

    def __init__(
        self, spec: HostSpec, launched: Launched, log: Log, watcher: Watcher | None = None
    ) -> None:
        self._spec = spec
        self._watcher: Watcher = Unwatched() if watcher is None else watcher
        self._launched = launched
        self._log = log
        self._channel = Channel(launched.connection)
        self._notes = DeathNotes(launched.notes)
        self._number = 0
        self._next_look = 0.0
        self._greeted = False
        self._doom: HarnessError | None = None

    def greet(self, deadline_s: float) -> dict[str, Any]:
        """Wait for the child's hello.

        Raises:
            HarnessError: Whatever kept it from coming.
        """
        context = self._begin("start")
        hello = self._next_message(context, deadline_s)
        if hello.get("event") != "hello" or hello.get("protocol") != PROTOCOL:
            raise context.not_understood(
                f"not the greeting of protocol {PROTOCOL}: {str(hello)[:200]}"
            )
        self._greeted = True
        return hello

    def request(self, op: str, params: Mapping[str, Any]) -> Context:
        """Queue one call for sending; :meth:`reply` must follow.

        Raises:
            UsageError: ``host.bad-request``; nothing was queued.
        """
        message = {"id": self._number + 1, "op": op, "params": dict(params)}
        try:
            self._channel.put(message)
        except (ProtocolError, TypeError, ValueError) as error:
            raise UsageError(
                "host.bad-request",
                expected="parameters that fit one JSON message",
                found=str(error),
                where=f"op {op}",
                next="send tensors and long lists by file",
            ) from error
        self._number += 1
        return self._begin(op)

    def reply(self, context: Context, deadline_s: float, on_event: OnEvent | None) -> Reply:
        """Hand on the events of the call and wait for its end.

        Raises:
            HarnessError: What ended the call; the engine cannot be used any more.
        """
        while True:
            message = self._next_message(context, deadline_s)
            if message.get("id") != self._number:
                raise context.not_understood(f"a message of another call: {str(message)[:200]}")
            if "event" in message:
                if on_event is not None:
                    on_event({key: value for key, value in message.items() if key != "id"})
            elif isinstance(message.get("result"), dict):
                self._watcher.done(time.monotonic())
                return Reply(message["result"])
            elif isinstance(message.get("error"), dict):
                error = context.told(message["error"])
                if not message["error"].get("foreseen"):
                    raise self._cause_of(context, error)
                return Reply({}, error)
            else:
                raise context.not_understood(f"no result and no error: {str(message)[:200]}")

    def look(self) -> HarnessError | None:
        """Return what has died while nobody called; None: nothing."""
        return self._find_death(self._context("none"))

    def shut_down(self, deadline_s: float) -> None:
        """Ask for an orderly end and wait for it; deaths are none any more."""
        deadline = time.monotonic() + deadline_s
        with contextlib.suppress(ProtocolError):
            self.request("shutdown", {})
            while self._running() and (left := deadline - time.monotonic()) > 0:
                self._pump(min(left, _LOOK_S))
                self._launched.listen()

    def _begin(self, op: str) -> Context:
        context = self._context(op)
        folder = self._launched.folder
        self._watcher.begin(Call(op, context.begun, self._log, lambda: left_on_disk(folder)[0]))
        return context

    def _context(self, op: str) -> Context:
        engine = self._launched.engine
        pid = engine.pid if engine is not None else 0
        return Context(self._spec, self._log, op, time.monotonic(), pid)

    def _running(self) -> bool:
        return self._launched.exit_code is None and not self._launched.over

    def _next_message(self, context: Context, deadline_s: float) -> dict[str, Any]:
        """Wait for one message; raise what ended the engine, once all before it was handed on."""
        deadline = context.begun + deadline_s
        while True:
            now = time.monotonic()
            if self._doom is None and now >= self._next_look:
                self._next_look = now + _LOOK_S
                self._doom = self._find_death(context) or self._find_doom(context, now)
            message = self._channel.take()
            late = now >= deadline
            if message is not None and not (late and "event" in message):
                return message
            if self._doom is not None:
                raise self._doom
            if late:
                raise self._late(context)
            try:
                self._pump(min(deadline - now, _LOOK_S))
            except ProtocolError as error:
                raise context.not_understood(str(error)) from error

    def _pump(self, seconds: float) -> None:
        """Move bytes between the pipes and this object for at most ``seconds``."""
        channel, launched = self._channel, self._launched
        poll = select.poll()  # And not select(): its limit of 1024 open files is soon reached.
        if not channel.ended:
            poll.register(channel, select.POLLIN | (select.POLLOUT if channel.pending else 0))
        if not launched.over:
            poll.register(launched.status_fd, select.POLLIN)
        for fd, events in poll.poll(seconds * 1000):
            if fd == launched.status_fd:
                self._next_look = 0.0
                continue
            if events & select.POLLOUT:
                channel.flush()
            if events & ~select.POLLOUT:
                channel.fill()
        if channel.ended:
            self._next_look = 0.0

    def _find_death(self, context: Context) -> HarnessError | None:
        """Look at the status pipe, the notes and the socket for what has died."""
        channel, launched = self._channel, self._launched
        launched.listen()
        if channel.ended and self._running():
            # It hung up. If that was its end, the exit code follows within moments.
            launched.wait_for_exit(_CAUSE_S)
        if not self._running() and not channel.ended:
            with contextlib.suppress(ProtocolError):
                channel.fill()
        if launched.engine is not None and context.pid == 0:
            context = Context(self._spec, self._log, context.op, context.begun, launched.engine.pid)
        notes = self._notes.read(launched.notes_limit)
        if notes:
            return context.worker_died(notes)
        if launched.exit_code is not None:
            return context.engine_died(launched.exit_code)
        if launched.stopped:
            return context.stopped(launched.stopped)
        if launched.refusal is not None:
            return context.refused(launched.refusal)
        if launched.over:
            return context.reaper_died()
        if channel.ended:
            return context.hung_up()
        return None

    def _find_doom(self, context: Context, now: float) -> HarnessError | None:
        """Let the watcher look at an engine that lives."""
        cut = self._watcher.look(now)
        return None if cut is None else context.doomed(cut)

    def _cause_of(self, context: Context, error: EngineFailed) -> HarnessError:
        """Prefer the death behind an error: an engine says "dead" before a note says who."""
        until = time.monotonic() + _CAUSE_S
        while time.monotonic() < until:
            cause = self._find_death(context)
            if cause is not None:
                cause.details["traceback"] = error.details["traceback"]
                return cause
            time.sleep(0.05)
        return error

    def _late(self, context: Context) -> EngineFailed:
        tail = context.last_lines()
        return context.late(tail, self.leave_stacks())

    def leave_stacks(self) -> list[str]:
        """Have every process write its stacks into the log; return what came at once."""
        mark = self._log.size()
        # Before its greeting the child has no handler for the signal.
        if not (self._greeted and self._running() and self._launched.dump_stacks()):
            return []
        stacks = self._log.settled(mark, _STACKS_S)
        spy(self._launched.tree(), self._spec.log)
        return stacks
