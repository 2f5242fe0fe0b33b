"""What can go wrong around one call, each told as one error with the engine's last words."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from harness.errors import EngineFailed, HarnessError, Refused
from harness.host.deaths.notes import DeathNote, exit_text, signal_name
from harness.host.log import Log
from harness.host.spec import HostSpec
from harness.host.watch import Cut

DOOMED: Final = "host.doomed"
"""Id of the error for an engine that was ended because it could not succeed any more."""

_SHOWN_LINES = 12
_KEPT_LINES = 60


@dataclass(frozen=True)
class Context:
    """One call, as its errors describe it.

    Attributes:
        spec: What was started.
        log: The engine's log.
        op: Operation of the call; ``start`` for the greeting.
        begun: When it began, on the monotonic clock.
        pid: The engine's pid, 0 when it is not known.
    """

    spec: HostSpec
    log: Log
    op: str
    begun: float
    pid: int

    def _failed(
        self, id: str, expected: str, found: str, tail: list[str] | None = None, **details: Any
    ) -> EngineFailed:
        seconds = time.monotonic() - self.begun
        lines = self.log.tail(_KEPT_LINES) if tail is None else tail
        shown = "".join(f"\n    | {line}" for line in lines[-_SHOWN_LINES:])
        return EngineFailed(
            id,
            expected=expected,
            found=f"{found}; last log lines:{shown}" if shown else f"{found}; the log is empty",
            where=f"op {self.op} after {seconds:.1f} s, engine pid {self.pid}, {self.spec.module}",
            next=f"read {self.spec.log}",
            op=self.op,
            seconds=seconds,
            log_tail=lines,
            **details,
        )

    def worker_died(self, notes: list[DeathNote]) -> EngineFailed:
        """Some process that the engine had started ended abnormally."""
        return self._failed(
            "host.worker-died",
            "every worker of the engine lives until shutdown",
            "; ".join(map(str, notes)),
            exit_code=notes[0].exitcode,
            signal=signal_name(notes[0].exitcode),
            notes=[str(note) for note in notes],
        )

    def engine_died(self, code: int) -> EngineFailed:
        """The engine itself ended; ``code`` is negative for a signal."""
        starting = self.op == "start"
        return self._failed(
            "host.start-failed" if starting else "host.engine-died",
            "the engine's process says hello" if starting else "the engine lives until shutdown",
            exit_text(code),
            exit_code=code,
            signal=signal_name(code),
        )

    def stopped(self, names: list[str]) -> EngineFailed:
        """Somebody halted a process, which would let the call hang until its deadline."""
        return self._failed(
            "host.process-stopped",
            "no process of the engine is halted",
            f"{', '.join(names)}: halted by SIGSTOP (state T)",
            stopped=names,
        )

    def reaper_died(self) -> EngineFailed:
        """The process between us and the engine was killed, and so the engine."""
        return self._failed(
            "host.reaper-died",
            "the process between harness and engine lives",
            "it was killed; the engine has been ended with it",
        )

    def hung_up(self) -> EngineFailed:
        """The engine closed its socket and goes on running."""
        return self._failed(
            "host.protocol", "an open control socket", "the engine closed it but goes on running"
        )

    def not_understood(self, found: str) -> EngineFailed:
        """Something came over the wire that is no message of this call."""
        return self._failed("host.protocol", "messages of this call, one JSON object a line", found)

    def late(self, tail: list[str], stacks: list[str]) -> EngineFailed:
        """The deadline is over.

        Args:
            tail: Last log lines from before the stacks.
            stacks: What the hung processes then wrote.
        """
        seconds = time.monotonic() - self.begun
        told = ", its stacks are at the end of the log" if stacks else ""
        return self._failed(
            "host.deadline",
            f"op {self.op} ends within its deadline",
            f"still running after {seconds:.1f} s{told}",
            tail=tail,
            stacks=stacks,
        )

    def doomed(self, cut: Cut) -> EngineFailed:
        """It lives and is ended all the same: it cannot succeed any more."""
        error = self._failed(DOOMED, cut.expected, cut.found, **cut.details)
        return _with(error, next=f"{cut.next}; {error.failure.next}")

    def refused(self, message: str) -> Refused:
        """The system would not run the interpreter."""
        return Refused(
            "host.no-interpreter",
            expected="a Python interpreter that can be started",
            found=message,
            where=str(self.spec.python),
            next="name the environment's own bin/python",
        )

    def told(self, reply: Mapping[str, Any]) -> EngineFailed:
        """The operation raised; what the child says about it is kept."""
        found = f"{reply.get('type', 'error')}: {reply.get('message', '')}"
        return EngineFailed(
            str(reply.get("id", "engine.error")),
            expected=str(reply.get("expected", f"op {self.op} returns a result")),
            found=str(reply.get("found", found)),
            where=str(reply.get("where", f"op {self.op} in the engine (pid {self.pid})")),
            next=str(reply.get("next", f"read the traceback and {self.spec.log}")),
            op=self.op,
            seconds=time.monotonic() - self.begun,
            traceback=reply.get("traceback"),
            type=reply.get("type"),
            log_tail=self.log.tail(_KEPT_LINES),
        )

    def last_lines(self) -> list[str]:
        """Return the log lines that an error keeps."""
        return self.log.tail(_KEPT_LINES)


def extended(error: HarnessError, where: str, facts: Mapping[str, Any]) -> HarnessError:
    """Return the error with more words about where, and more facts; others go unchanged."""
    if not isinstance(error, EngineFailed) or not (where or facts):
        return error
    place = f"{error.failure.where}; {where}" if where else error.failure.where
    return _with(error, where=place, **{**facts, **error.details})


def _with(error: EngineFailed, **changes: Any) -> EngineFailed:
    told = EngineFailed(**{**error.failure.to_json(), **error.details, **changes})
    told.__cause__ = error.__cause__
    return told


def interrupted(spec: HostSpec) -> EngineFailed:
    """The caller left a call: Ctrl-C, or an error of its event handler."""
    return EngineFailed(
        "host.interrupted",
        expected="a call runs to its end",
        found="it was left by an interrupt or an error of the caller",
        where=spec.module,
        next="start another host",
    )


def failed_before(cause: HarnessError) -> EngineFailed:
    """A call after the failure that ended the engine."""
    return EngineFailed(
        "host.failed-before",
        expected="an engine that runs",
        found=f"it was ended after {cause.failure.id}",
        where=cause.failure.where,
        next="start another host; the first failure is the one to look at",
        cause=cause,
    )


def survivors(spec: HostSpec, names: list[str]) -> EngineFailed:
    """Processes that cannot be killed."""
    return EngineFailed(
        "host.survivors",
        expected="no process of the engine is left",
        found=", ".join(names),
        where=str(spec.log),
        next="they do not end on SIGKILL (a stuck driver or disk); look at them with ps",
    )
