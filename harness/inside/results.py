"""Read the spool's ``results.jsonl`` while the workers append to it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from harness.inside.spool import RESULTS


class Results:
    """A cursor over the result lines of one spool folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / RESULTS
        self._offset = 0
        self._rest = b""

    def new(self) -> Iterator[dict[str, Any]]:
        """Yield the lines that have come since the last call; a torn line waits."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            yield json.loads(line)

    def collect(
        self,
        keys: Iterable[str],
        *,
        deadline_s: float,
        over: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> Iterator[dict[str, Any]]:
        """Yield a line for each key as it comes, in the order of completion.

        Lines of other keys are passed over for good, so one may collect at a time.

        Args:
            keys: Whose lines are waited for.
            deadline_s: For how long.
            over: Says that nobody waits any more.
            clock: Seconds.
            pause: Sleeps so many seconds.

        Raises:
            TimeoutError: Some keys did not come in time; the message names how many
                and the first few.
        """
        missing = set(keys)
        end = clock() + deadline_s
        while missing:
            for line in self.new():
                if line["key"] in missing:
                    missing.discard(line["key"])
                    yield line
            if missing:
                if clock() > end or over():
                    raise TimeoutError(
                        f"{len(missing)} samples not written, such as {sorted(missing)[:3]}"
                    )
                pause(0.005)
