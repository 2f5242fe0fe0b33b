"""Who hears of a run's progress."""

from __future__ import annotations

from typing import Protocol

from harness.host.supervision.policy import LoadProgress


class Observer(Protocol):
    """Hears of the run's progress; printing is its business."""

    def stage(self, name: str, detail: str = "") -> None:
        """A stage begins."""

    def loading(self, progress: LoadProgress) -> None:
        """The load is here: at each phase and shard, and about once a second."""

    def warning(self, text: str) -> None:
        """The engine goes on, but somebody should know this."""

    def progress(self, samples: int, tokens: int, bytes: int) -> None:
        """So much is published, over the whole run."""


class Silent:
    """An observer that says nothing."""

    def stage(self, name: str, detail: str = "") -> None:
        """Ignore it."""

    def loading(self, progress: LoadProgress) -> None:
        """Ignore it."""

    def warning(self, text: str) -> None:
        """Ignore it."""

    def progress(self, samples: int, tokens: int, bytes: int) -> None:
        """Ignore it."""
