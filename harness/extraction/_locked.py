"""The host of an engine that uses GPUs: it holds their locks while it runs."""

from __future__ import annotations

import os
from typing import Any

from harness.gpu_lock import GpuLock, gpus_of
from harness.host import Host, HostSpec


class LockedHost(Host):
    """A host that takes the locks of its GPUs before its engine starts.

    They are given back when the engine and all that it started are gone.
    """

    def __init__(self, spec: HostSpec, *more: Any) -> None:
        super().__init__(spec, *more)
        self._lock: GpuLock | None = None

    def start(self, deadline_s: float = 60.0) -> dict[str, Any]:
        """Lock the GPUs, then start the engine; see :meth:`harness.host.Host.start`.

        Raises:
            Refused: ``gpus.locked``, ``gpus.lock-folder``.
        """
        if self._lock is None:
            self._lock = GpuLock(gpus_of({**os.environ, **self.spec.env}))
        try:
            return super().start(deadline_s)
        except BaseException:
            self._unlock()
            raise

    def close(self, deadline_s: float = 20.0) -> None:
        """End the engine, then give the GPUs back; see :meth:`harness.host.Host.close`."""
        try:
            super().close(deadline_s)
        finally:
            self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
