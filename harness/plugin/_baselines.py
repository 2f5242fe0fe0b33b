"""The session's side of baselines: what was compared, what is recorded at the end, the summary."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError

if TYPE_CHECKING:
    from harness.baseline import Key
    from harness.plugin._own_baseline import EngineBaseline
    from harness.settings import Settings

KEEPER = "harness-baselines"
"""Name under which a session's keeper is registered with pytest."""


class BaselineKeeper:
    """Keeps what a session compared, records it where asked, and prints it.

    Attributes:
        settings: What the user set.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._engines: dict[Key, EngineBaseline] = {}
        self._written: list[str] = []
        self._refused: list[str] = []

    def keep(self, engine: EngineBaseline) -> EngineBaseline:
        """Remember an engine's baseline; of one key there is one in a session."""
        return self._engines.setdefault(engine.key, engine)

    @pytest.hookimpl
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Record what was measured; a refusal fails the session."""
        folder = self.settings.record_baseline
        measured = [one for one in self._engines.values() if one.measured.figures]
        if folder is None or not measured:
            return
        if exitstatus != pytest.ExitCode.OK:
            self._written.append(f"not recorded to {folder}: the session did not pass")
            return
        from harness.baseline import write

        for one in measured:
            try:
                self._written.append(f"recorded: {write(folder, one.measured)}")
            except HarnessError as error:
                failure = error.failure
                self._refused.append(f"{failure.id}: {failure.found}; next: {failure.next}")
        if self._refused:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print every figure beside its floor, engine by engine."""
        told = [one for one in self._engines.values() if one.findings]
        if not told and not self._refused and not self._written:
            return
        terminalreporter.section("hidden-state harness: baselines")
        for one in told:
            terminalreporter.write_line(str(one.key))
            # By what is not recorded, a reader sees at once why nothing is green.
            terminalreporter.write_line(f"  {one.reason or f'recorded {one.recorded}'}")
            for finding in one.findings:
                bad = not finding.passed
                # Of an engine without an entry, the line above says why.
                text = f"{finding.name}: {finding.found}, {finding.status}"
                line = str(finding) if one.entry else text
                terminalreporter.write_line(f"  {line}", red=bad, bold=bad)
        for line in self._written:
            terminalreporter.write_line(line)
        for line in self._refused:
            terminalreporter.write_line(f"FAILED: baseline not recorded: {line}", red=True)
