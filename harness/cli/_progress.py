"""Progress of a run on stderr: stages, then samples, tokens/s, bytes and time left."""

from __future__ import annotations

import time

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.status import Status

from harness.cli._outcome import log, say
from harness.host.supervision.policy import LoadProgress

_STAGES = {
    "rehearsal": "rehearsing with a few layers",
    "load": "loading the engine",
    "canary": "proving it with the canary",
    "capture": "capturing",
    "reference": "computing the reference",
}


class ConsoleObserver:
    """Shows a run as it goes; plain lines where stderr is no terminal."""

    def __init__(self, total: int, total_tokens: int) -> None:
        self._total, self._total_tokens = total, total_tokens
        self._status: Status | None = None
        self._progress: Progress | None = None
        self._task = TaskID(0)
        self._started = time.monotonic()

    def stage(self, name: str, detail: str = "") -> None:
        """Announce a stage."""
        self.close()
        text = _STAGES.get(name, name) + (f": {detail}" if detail else "")
        if not log.is_terminal:
            say(text)
        elif name == "capture":
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=log,
            )
            self._task = self._progress.add_task(text, total=self._total, rate="")
            self._progress.start()
        else:
            self._status = log.status(text)
            self._status.start()
        self._started = time.monotonic()

    def loading(self, progress: LoadProgress) -> None:
        """Show the phase of the load, its shards, and what is left; a line each where plain."""
        if self._status is not None:
            self._status.update(progress.text)
        elif progress.new_phase and not log.is_terminal:
            say(progress.text)

    def warning(self, text: str) -> None:
        """Print a warning beside whatever is shown."""
        log.print(f"warning: {text}", style="yellow", markup=False, soft_wrap=True)

    def progress(self, samples: int, tokens: int, bytes: int) -> None:
        """Show what is published so far."""
        if self._progress is not None:
            seconds = max(time.monotonic() - self._started, 1e-6)
            rate = f"{tokens / seconds:,.0f} tok/s  {bytes / 1e9:.2f} GB"
            self._progress.update(self._task, completed=samples, rate=rate)

    def close(self) -> None:
        """Stop whatever is shown."""
        if self._status is not None:
            self._status.stop()
            self._status = None
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
