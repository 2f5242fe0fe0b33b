"""Keeps the one engine of a session and what the summary says about it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import HarnessError
from harness.plugin import _attach
from harness.plugin._load_lines import LoadLines

if TYPE_CHECKING:
    from harness.plugin.engine import Engine
    from harness.plugin.extraction import Extraction
    from harness.settings import Settings


@dataclass(frozen=True)
class EngineReport:
    """The engine of a session, for the summary; travels as JSON between processes.

    Attributes:
        loads: How often an engine was loaded.
        seconds: From the start of its process to the end of the canary.
        canary: ``passed``, ``failed``, or empty where it did not come to it.
        failure: What put the engine out of use, or why there was none; in one line.
        left: What could not be ended; empty where nothing survived.
        log: What the engine printed.
        rehearsal: What the rehearsal showed, in one line; empty where there was none.
        extraction: ``samples``, ``tokens``, ``tokens_per_s`` and ``out`` of the extraction.
        attached: Which lease's engine it is; empty where the session has loaded its own.
        warnings: What the supervisor warned of.
    """

    loads: int = 0
    seconds: float = 0.0
    canary: str = ""
    failure: str = ""
    left: str = ""
    log: str = ""
    rehearsal: str = ""
    extraction: dict[str, Any] | None = None
    attached: str = ""
    warnings: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return asdict(self)


class EngineKeeper:
    """Makes the engine at the first call and never another one.

    Args:
        lines: Tells the user how far a load is.
    """

    def __init__(self, lines: LoadLines) -> None:
        self._lines = lines
        self._engine: Engine | None = None
        self._failure: BaseException | None = None
        self._report = EngineReport()

    @property
    def failure(self) -> BaseException | None:
        """What the session's engine failed with first; None while it can be used, or loaded."""
        if self._failure is None and self._engine is not None:
            self._failure = self._engine.failure
        return self._failure

    @property
    def report(self) -> EngineReport | None:
        """What happened so far; None where no engine was asked for."""
        if self._engine is None and self._failure is None:
            return None
        report = self._report
        if self._engine is not None:
            report = replace(report, loads=self._engine.loads)
        return replace(report, failure=self._reason(), warnings=tuple(self._lines.warnings))

    def start(self, settings: Settings, model: Callable[[], Path], folder: Path) -> Engine:
        """Load and prove the engine, or attach to a leased one and prove that anew.

        Args:
            settings: What the user set.
            model: Makes or names the checkpoint.
            folder: For the spool and the log.

        Raises:
            HarnessError: Whatever stands against it; the same again at a second call.
        """
        if self._failure is not None:
            raise self._failure
        started = time.monotonic()
        try:
            self._engine = self._make(settings, model, folder)
            self._note(log=str(self._engine.log))
            self._engine.start()
        except BaseException as error:
            self._failure = error
            if isinstance(error, HarnessError) and error.failure.id == "canary.failed":
                self._note(canary="failed")
            raise
        finally:
            self._note(seconds=time.monotonic() - started)
        self._note(canary="passed")
        return self._engine

    def _make(self, settings: Settings, model: Callable[[], Path], folder: Path) -> Engine:
        from harness.plugin._asked import attach_engine, engine_plan
        from harness.plugin._rehearse import rehearsed
        from harness.plugin.engine import Engine

        if settings.attach is None:
            checkpoint = model()
            plan = engine_plan(settings, checkpoint, folder)
            supervision = self._lines.supervision(settings)
            if settings.rehearse:
                found = rehearsed(settings, checkpoint, folder, supervision, self._lines.tell)
                self._note(rehearsal=found)
            return Engine(plan, log=folder / "engine.log", supervision=supervision)
        attached = attach_engine(settings)
        self._note(attached=_attach.told(attached.lease))
        return Engine(attached.plan, log=attached.lease.log, attached=attached)

    def note_extraction(self, extraction: Extraction) -> None:
        """Remember what an extraction did."""
        result = extraction.result.to_json()
        kept = ("samples", "tokens", "tokens_per_s", "out")
        self._note(extraction={name: result[name] for name in kept})

    def close(self) -> None:
        """End the engine; what could not be ended goes into the report, not into an error.

        This runs at the very end of a session, where an error would hide the tests' results.
        """
        if self._engine is None:
            return
        try:
            self._engine.close()
        except HarnessError as error:
            self._note(left=error.failure.found)

    def _note(self, **changes: Any) -> None:
        self._report = replace(self._report, **changes)

    def _reason(self) -> str:
        if self.failure is None:
            return ""
        from harness.plugin.engine import reason

        return reason(self.failure)
