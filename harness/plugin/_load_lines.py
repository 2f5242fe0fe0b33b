"""Lines about a load in pytest's output: it takes up to 20 minutes in which no test ends."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from harness.host.supervision.policy import LoadProgress, Supervision
    from harness.settings import Settings

_SILENT = -2  # -qq


class LoadLines:
    """Writes one line for each phase of a load, past pytest's capture.

    Attributes:
        warnings: What the supervisor warned of, for the summary.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.warnings: list[str] = []

    def supervision(self, settings: Settings) -> Supervision:
        """Return what the supervisor is told: the user's policy, and to tell this object.

        Raises:
            UsageError: ``supervise.bad-policy``.
        """
        from harness.host.supervision.policy import Supervision, read_actions

        return Supervision(
            actions=read_actions(settings.supervise, "--hs-supervise"),
            stall_s=settings.stall_deadline,
            on_progress=self.loading,
            on_warning=self.warning,
        )

    def loading(self, progress: LoadProgress) -> None:
        """Write a line when a phase begins."""
        if progress.new_phase:
            self._write(progress.text)

    def tell(self, text: str) -> None:
        """Write a line."""
        self._write(text)

    def warning(self, text: str) -> None:
        """Write a warning, and keep it for the summary."""
        self.warnings.append(text)
        self._write(f"warning: {text}", yellow=True)

    def _write(self, text: str, **markup: bool) -> None:
        plugins = self._config.pluginmanager
        terminal: Any = plugins.getplugin("terminalreporter")
        if terminal is None or self._config.get_verbosity() <= _SILENT:
            return
        capture: Any = plugins.getplugin("capturemanager")
        shown = (
            contextlib.nullcontext() if capture is None else capture.global_and_fixture_disabled()
        )
        with shown:
            terminal.ensure_newline()
            terminal.write_line(f"harness: {text}", **markup)
            terminal.flush()
