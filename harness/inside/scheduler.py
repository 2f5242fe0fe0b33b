"""The release's own scheduler, and a watch over the workers beside it.

The patched capture has no object in the process that owns the workers. vLLM makes its
scheduler there, so this is where a worker's death can be seen with its signal; see
:mod:`harness.inside.deaths`. Nothing of scheduling is changed.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler

from harness.inside.deaths import watch_children


class WatchingScheduler(Scheduler):  # type: ignore[misc]  # vllm is untyped here
    """See the module's docstring."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        watch_children()
