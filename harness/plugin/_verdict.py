"""The gate's verdict on the vLLM that a session used: in the summary and in the JUnit report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import HarnessError

if TYPE_CHECKING:
    from harness.engine_facts import Inspection
    from harness.plugin._session import HarnessSession

VERDICT = "harness-verdict"
"""Name under which the keeper is registered with pytest."""


@dataclass(frozen=True)
class SessionVerdict:
    """What rung static says of the vLLM that was used.

    Attributes:
        release: The release.
        known: The recorded release that it was held against.
        verdict: The gate's verdict.
    """

    release: str
    known: str
    verdict: str

    def __str__(self) -> str:
        return f"gate: vLLM {self.release} after {self.known}: {self.verdict}, by rung static"

    @property
    def properties(self) -> dict[str, str]:
        """Name -> value, as a JUnit report carries them."""
        return {
            "harness.vllm": self.release,
            "harness.gate.known": self.known,
            "harness.gate.verdict": self.verdict,
            "harness.gate.rung": "static",
        }


class VerdictKeeper:
    """Asks at the end of a session in which an engine ran; another session costs nothing."""

    def __init__(self, session: HarnessSession) -> None:
        self._session = session
        self._verdict: SessionVerdict | None = None

    @pytest.hookimpl(tryfirst=True)  # before the JUnit report is written
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Ask, and put the answer into the JUnit report where one is written."""
        if hasattr(session.config, "workerinput") or not self._session.engine_ran:
            return
        self._verdict = verdict_of(self._session.inspection)
        report = _junit(session.config)
        if self._verdict is not None and report is not None:
            for name, value in self._verdict.properties.items():
                report.add_global_property(name, value)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say it in one line."""
        if self._verdict is not None:
            terminalreporter.write_line(str(self._verdict))


def verdict_of(found: Inspection | None) -> SessionVerdict | None:
    """Return what rung static says of an interpreter's vLLM; None where it cannot be asked."""
    if found is None or found.package is None:
        return None
    from harness.gate.candidate import Candidate, known_good
    from harness.gate.scale import worst
    from harness.gate.static import judge
    from harness.gate.verdict import Side
    from harness.seams import recorded
    from harness.standing.preload import surface_at

    try:
        # The load has read these files just now; what it found is remembered.
        surface = surface_at(found.package)
        side = Side(surface.release, surface.build, surface.digest, str(found.package))
        known = known_good(Candidate(surface, side))
        if known is None:
            return None
        answer = judge(recorded(known), surface)
    except HarnessError:
        return None
    return SessionVerdict(
        surface.release, known, str(worst(one.verdict for one in answer.generations))
    )


def _junit(config: pytest.Config) -> Any:
    """Return pytest's JUnit writer, or None; it is reached as its own fixtures reach it."""
    try:
        from _pytest.junitxml import xml_key
    except ImportError:
        return None
    return config.stash.get(xml_key, None)
