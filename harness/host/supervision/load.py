"""One load: how far it has come beside how long it should take. Pure."""

from __future__ import annotations

from typing import Any

from harness.host.supervision.loads import Expected, clock
from harness.host.supervision.phases import LoadTrack, Phase
from harness.host.supervision.policy import LoadProgress


class Load:
    """A load that goes on.

    Args:
        begun: When it began, on the monotonic clock.
        expected: How long it should take; None where nothing is known.

    Attributes:
        track: How far it has come.
    """

    def __init__(self, begun: float, expected: Expected | None) -> None:
        self.track = LoadTrack(begun)
        self._expected = expected

    def facts(self, now: float) -> dict[str, Any]:
        """Return its phase, and the seconds that it took, should take and would still take."""
        seconds = now - self.track.begun
        facts = {"phase": self.track.phase.value, "load_seconds": round(seconds, 2)}
        if self._expected is None:
            return facts
        saved = max(0.0, self._expected.seconds - seconds)
        return {
            **facts,
            "expected_seconds": round(self._expected.seconds, 2),
            "saved_seconds": round(saved, 2),
        }

    def times(self, now: float) -> str:
        """Write ``2:10 of an expected 20:00 (why), 17:50 saved``."""
        seconds = now - self.track.begun
        if self._expected is None:
            return clock(seconds)
        total = self._expected.seconds
        saved = f", {clock(total - seconds)} saved" if total > seconds else ""
        return f"{clock(seconds)} of an expected {clock(total)} ({self._expected.why}){saved}"

    def progress(self, now: float, *, new_phase: bool) -> LoadProgress:
        """Return where it is."""
        track, expected = self.track, self._expected
        ready = track.phase is Phase.READY
        left = None if expected is None else 0.0 if ready else expected.left(track, now)
        return LoadProgress(
            phase=track.phase.value,
            where=track.where,
            done=track.done,
            total=track.total,
            seconds=now - track.begun,
            expected_s=None if expected is None else expected.seconds,
            eta_s=left,
            why="" if expected is None else expected.why,
            new_phase=new_phase,
        )
