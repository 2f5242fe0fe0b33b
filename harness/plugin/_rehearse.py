"""The rehearsal of a session's engine, before its load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness.extraction import Silent
from harness.host.supervision.policy import LoadProgress, Supervision
from harness.lease.asked import bounded
from harness.plugin._asked import engine_options
from harness.plugin._preflight import left_out
from harness.rehearsal import rehearse
from harness.settings import Settings


class _Told(Silent):
    """Tells the stages, and hands on what the supervision tells of the load."""

    def __init__(self, tell: Callable[[str], None], supervision: Supervision) -> None:
        self._tell, self._supervision = tell, supervision

    def stage(self, name: str, detail: str = "") -> None:
        """Write a line."""
        self._tell(f"{name}: {detail}" if name == "rehearsal" else f"rehearsal, {name}")

    def loading(self, progress: LoadProgress) -> None:
        """Hand it on."""
        self._supervision.on_progress(progress)

    def warning(self, text: str) -> None:
        """Hand it on."""
        self._supervision.on_warning(text)


def rehearsed(
    settings: Settings,
    model: Path,
    folder: Path,
    supervision: Supervision,
    tell: Callable[[str], None],
) -> str:
    """Rehearse the load of a session; return what it showed, in one line.

    Args:
        settings: What the user set.
        model: The checkpoint.
        folder: For the cut model and its samples, where the session writes its own.
        supervision: As for the load.
        tell: Writes a line for the user.

    Raises:
        HarnessError: As :func:`harness.rehearsal.rehearse`.
    """
    options, longest = bounded(engine_options(settings, model))
    found = rehearse(
        options,
        disk=settings.out.parent if settings.out and settings.out.parent.is_dir() else folder,
        log=folder / "rehearsal.log",
        longest_prompt=longest,
        observer=_Told(tell, supervision),
        supervision=supervision,
        skip_checks=left_out(settings),
    )
    return found.summary()
