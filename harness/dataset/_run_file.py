"""Writes ``run.json``: who made this dataset, of what, with what, and how far it got."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.dataset._files import atomic_write, digest
from harness.dataset.manifest import MANIFEST, ManifestLine
from harness.dataset.prompt_set import PromptSet
from harness.dataset.run_info import RUN_FILE, SCHEMA, RunInfo, encode_run, read_run


class RunFile:
    """Keeps what earlier sessions recorded and adds this one.

    Attributes:
        arrow: File name to checksum of the Arrow folder beside; set by its writer.
    """

    def __init__(self, folder: Path, prompts: PromptSet) -> None:
        """Read what an earlier session left.

        Raises:
            OSError: It cannot be read.
        """
        self._folder = folder
        self._prompts = prompts
        self._now = _now()
        try:
            earlier = read_run(folder)
        except FileNotFoundError:
            earlier = {}
        self._created: str = earlier.get("created", self._now)
        self._sessions: list[dict[str, Any]] = list(earlier.get("sessions", []))
        self._before = len(self._sessions)
        self.arrow: dict[str, str] = dict(earlier.get("arrow") or {})
        self._kept: int | None = None

    def write(
        self,
        info: RunInfo,
        state: str,
        lines: Mapping[int, ManifestLine],
        *,
        seconds: float | None = None,
        reason: str | None = None,
    ) -> dict[str, Any]:
        """Write the file atomically and return its content.

        Args:
            info: The run.
            state: ``started``, ``incomplete``, ``complete``, ``interrupted`` or ``failed``.
            lines: The samples that are there.
            seconds: This session's duration; given when it ends.
            reason: Why it ended early.

        Raises:
            OSError: It cannot be written.
        """
        if self._kept is None:
            self._kept = len(lines)
        ended = seconds is not None
        session = {
            "started": self._now,
            "seconds": None if seconds is None else round(seconds, 3),
            "published": len(lines) - self._kept,
            "versions": dict(info.versions),
        }
        sessions = [*self._sessions[: self._before], session]
        body: dict[str, Any] = {
            "schema": SCHEMA,
            "state": state,
            "reason": reason,
            "fingerprint": info.identity.fingerprint,
            "identity": info.identity.to_json(),
            "model": {"path": info.model_path, "fingerprint": info.identity.model},
            "layers": dict(info.layers),
            "layout": info.identity.layout,
            "columns": info.columns,
            "hidden_size": info.hidden_size,
            "dtype": info.identity.dtype,
            "capture": info.identity.capture,
            "patches": sorted(info.identity.patches),
            "versions": dict(info.versions),
            "engine": dict(info.engine),
            "prompts": {
                "path": str(self._prompts.path),
                "kind": self._prompts.kind,
                "fingerprint": self._prompts.fingerprint,
                "count": len(self._prompts),
                "tokens": self._prompts.tokens,
                "notes": [note.to_json() for note in self._prompts.notes],
            },
            "created": self._created,
            "updated": _now(),
            "seconds": round(sum(s["seconds"] or 0.0 for s in sessions), 3),
            "counts": {
                "samples": len(lines),
                "tokens": sum(line.tokens for line in lines.values()),
                "bytes": sum(line.bytes for line in lines.values()),
            },
            # Only a session that ended knows its manifest; a stale checksum would lie.
            "manifest": digest((self._folder / MANIFEST).read_bytes()) if ended else None,
            "arrow": self.arrow or None,
            "sessions": sessions,
        }
        data = encode_run(body)
        atomic_write(self._folder / RUN_FILE, data)
        written: dict[str, Any] = json.loads(data)
        return written


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
