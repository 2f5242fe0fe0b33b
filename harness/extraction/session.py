"""From a plan to a session: the engine's process, its lock and its watcher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.capture.session import EngineSession
from harness.extraction._locked import LockedHost
from harness.extraction._watched import supervisor_of
from harness.extraction.plan import EnginePlan
from harness.host import Host, HostSpec
from harness.host.supervision.policy import Supervision

PRELOAD = "HARNESS_PRELOAD"


def open_session(
    plan: EnginePlan,
    *,
    log: Path,
    preload: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    supervision: Supervision | None = None,
) -> EngineSession:
    """Make a session for a plan; nothing is started yet.

    Args:
        plan: How the engine is loaded.
        log: File for what the engine prints.
        preload: Further modules whose ``install()`` each worker calls before the model is built.
        env: Further environment of the engine's processes.
        supervision: What to do about an engine that cannot succeed, and who hears of the load.
    """
    env = {**plan.recipe.env, **(env or {})}
    modules = [*plan.recipe.preload, *preload]
    if modules:
        env[PRELOAD] = ",".join(modules)
    spec = HostSpec(
        python=plan.options.python,
        module="harness.inside.engine",
        env=env,
        log=log,
        model=str(plan.options.model),
    )
    # Other engines use no GPU, and may run beside each other.
    kind = LockedHost if plan.seen.platform.device == "cuda" else Host
    host = kind(spec, supervisor_of(plan, supervision or Supervision()))
    return EngineSession(host, plan.session)
