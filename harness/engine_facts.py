"""Ask an interpreter what it has, before anything is started in it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from harness.errors import HarnessError, NotComparable, UsageError
from harness.recipe import EngineFacts, Platform

_MODULE = "harness.inside.facts"
_PROTOCOL = 1


@dataclass(frozen=True)
class Inspection:
    """What an interpreter answered.

    Attributes:
        platform: The machine, as seen from it.
        engine: Its vLLM; ``engine.vllm`` is None without one.
        python: Version of the interpreter.
        executable: The interpreter, as it names itself.
        package: Folder of its vLLM, or None.
        cuda: CUDA version that its torch was built with, such as ``12.8``; empty for none.
    """

    platform: Platform
    engine: EngineFacts
    python: str
    executable: str
    package: Path | None
    cuda: str = ""


def inspect(
    python: Path, *, env: Mapping[str, str] | None = None, timeout_s: float = 20.0
) -> Inspection:
    """Run the facts module in ``python`` and read its answer.

    Args:
        python: The interpreter; it needs nothing of ours.
        env: Environment of the child; by default this process's own.
        timeout_s: Limit for the whole child.

    Raises:
        UsageError: ``engine.no-interpreter``: there is nothing to run at that path.
        NotComparable: ``engine.facts-timeout`` or ``engine.facts-failed``: it gave no answer.
    """
    # Not resolved: the link in an environment's bin folder is what selects the environment.
    found = Path(shutil.which(python) or python).absolute()
    with tempfile.TemporaryDirectory(prefix="harness-facts-") as folder:
        # Only our package, so that nothing else of this environment leaks into the other.
        (Path(folder) / "harness").symlink_to(Path(__file__).resolve().parent)
        child_env = dict(os.environ if env is None else env)
        paths = [folder, *filter(None, [child_env.get("PYTHONPATH")])]
        child_env["PYTHONPATH"] = os.pathsep.join(paths)
        try:
            done = subprocess.run(
                [str(found), "-m", _MODULE],
                env=child_env,
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except OSError as error:
            raise UsageError(
                "engine.no-interpreter",
                expected="a Python interpreter",
                found=error.strerror or str(error),
                where=str(python),
                next="give --python the interpreter of an environment with vLLM",
            ) from error
        except subprocess.TimeoutExpired as error:
            raise _no_answer(
                "engine.facts-timeout", f"none within {timeout_s:g} s", python
            ) from error
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()[-3:] or ["nothing on standard error"]
        raise _no_answer(
            "engine.facts-failed", f"exit code {done.returncode}: " + " / ".join(said), python
        )
    return _parse(done.stdout, python)


def _parse(text: str, python: Path) -> Inspection:
    try:
        # Site hooks of an environment may print before the module does.
        said: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
        if said["protocol"] != _PROTOCOL:
            raise ValueError(f"protocol {said['protocol']}")
        return _inspection(said)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise _no_answer(
            "engine.facts-failed", f"no answer of the facts module ({type(error).__name__})", python
        ) from error


def _inspection(said: dict[str, Any]) -> Inspection:
    vllm = said["vllm"]
    return Inspection(
        platform=Platform(
            device=said["device"],
            cores=said["cores"],
            has_amx=said["amx"],
            numa_nodes=said["numa_nodes"],
            gpus=said["gpus"],
        ),
        engine=EngineFacts(
            vllm=_release(vllm["version"]) if vllm else None,
            dist=vllm["dist"] if vllm else "vllm",
            probes=said["probes"],
            arguments=frozenset(said["arguments"]),
            versions=said["versions"],
        ),
        python=said["python"],
        executable=said["executable"],
        package=Path(vllm["path"]) if vllm else None,
        cuda=said.get("cuda", ""),
    )


def _release(version: str | None) -> Version | None:
    try:
        return Version(version or "")
    except InvalidVersion:
        return None


def _no_answer(id: str, found: str, python: Path) -> HarnessError:
    return NotComparable(
        id,
        expected=f"facts from `{python} -m {_MODULE}`",
        found=found,
        where=str(python),
        next="run that command by hand, or choose another interpreter",
    )
