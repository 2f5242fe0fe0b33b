"""What a host starts: interpreter, module, environment, log."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import Refused

# What would make another interpreter look for its library, or its packages, in ours.
_FOREIGN = (
    "PYTHONHOME",
    "PYTHONPATH",
    "PYTHONEXECUTABLE",
    "PYTHONPLATLIBDIR",
    "PYTHONSTARTUP",
    "PYTHONINSPECT",
    "__PYVENV_LAUNCHER__",
    "VIRTUAL_ENV",
    "VIRTUAL_ENV_PROMPT",
)


@dataclass(frozen=True, kw_only=True)
class HostSpec:
    """One engine process to be.

    Attributes:
        python: Interpreter that has the engine installed; needs nothing of ours.
        module: Module that it runs, such as ``harness.inside.engine``.
        log: File for everything that the engine's processes print; appended to.
        env: Added to a cleaned copy of our environment; a ``PYTHONPATH`` in it is kept behind ours.
        cwd: Working directory; by default an empty private one that is removed at the end.
        args: Command line arguments of the module.
        grace_s: Seconds between SIGTERM and SIGKILL when the tree is ended.
        model: What it will load, for who looks at what runs; empty where that is not known.
        core_dumps: Leave core dumps as they are. By default none is written, since a core of
            tens of gigabytes hides the death for minutes.
    """

    python: Path
    module: str
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    args: tuple[str, ...] = ()
    grace_s: float = 2.0
    model: str = ""
    core_dumps: bool = False

    def check(self) -> None:
        """Refuse what cannot be started here.

        Raises:
            Refused: ``host.platform``, ``host.no-interpreter``, ``host.no-folder``.
        """
        if not sys.platform.startswith("linux"):
            raise Refused(
                "host.platform",
                expected="Linux: engine processes are tracked through /proc and prctl",
                found=sys.platform,
                where="this machine",
                next="run the harness on the Linux machine that has the engine",
            )
        if not (self.python.is_file() and os.access(self.python, os.X_OK)):
            raise Refused(
                "host.no-interpreter",
                expected="a Python interpreter that has the engine installed",
                found="an unusable file" if self.python.exists() else "no such file",
                where=str(self.python),
                next="name the environment's own bin/python",
            )
        if self.cwd is not None and not self.cwd.is_dir():
            raise Refused(
                "host.no-folder",
                expected="a folder to work in",
                found="no such folder",
                where=str(self.cwd),
                next="create it, or leave the working directory to the host",
            )


def engine_environment(
    spec: HostSpec, link: Path, *, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Build the engine's environment.

    Args:
        spec: What is started.
        link: Folder that holds only a link to the ``harness`` package.
        base: What to clean and extend; by default this process's environment.

    Returns:
        The environment without traces of our interpreter, with the engine's own ``bin`` first
        on ``PATH``, with ``spec.env`` over it and ``link`` first on ``PYTHONPATH``.
    """
    source = dict(os.environ if base is None else base)
    ours = {str(Path(sys.prefix) / "bin")} if sys.prefix != sys.base_prefix else set()
    if source.get("VIRTUAL_ENV"):
        ours.add(str(Path(source["VIRTUAL_ENV"]) / "bin"))
    for name in _FOREIGN:
        source.pop(name, None)
    # Builders started by an engine (ninja, compilers) are looked up on PATH.
    folders = [str(spec.python.absolute().parent)]
    folders += [f for f in source.get("PATH", os.defpath).split(os.pathsep) if f not in ours]
    source["PATH"] = os.pathsep.join(dict.fromkeys(folders))
    # The last lines before a SIGKILL must be in the log and not in a buffer.
    source["PYTHONUNBUFFERED"] = "1"
    source["PYTHONFAULTHANDLER"] = "1"
    # setproctitle would write a worker's title over its environment, and so over our mark.
    source["SPT_NOENV"] = "1"
    # `-m` would put the working directory, with whatever lies there, before all packages.
    source["PYTHONSAFEPATH"] = "1"
    source.update(spec.env)
    behind = spec.env.get("PYTHONPATH", "")
    source["PYTHONPATH"] = os.pathsep.join([str(link), behind] if behind else [str(link)])
    return source
