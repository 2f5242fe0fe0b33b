"""The news of a start, from the keeper to whoever waits for it."""

from __future__ import annotations

import contextlib
import json
import os
import select
from dataclasses import asdict
from typing import Any

from harness.host.supervision.policy import LoadProgress


class News:
    """Tells whoever waits for the start, as long as somebody does."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def say(self, event: str, **facts: Any) -> None:
        """Send one event as a JSON line."""
        with contextlib.suppress(OSError):
            os.write(self._fd, (json.dumps({"event": event, **facts}) + "\n").encode())

    def progress(self, progress: LoadProgress) -> None:
        """Tell where the load is; left out where whoever listens does not keep up."""
        if self._fd >= 0 and select.select([], [self._fd], [], 0)[1]:
            self.say("progress", progress=asdict(progress))

    def warning(self, text: str) -> None:
        """Tell a warning of the load."""
        self.say("warning", text=text)

    def close(self) -> None:
        """Say no more."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
