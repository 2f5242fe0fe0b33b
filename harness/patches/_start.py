"""Starts a script with patches in force in it and in every process that it starts."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from harness.errors import CheckFailed, Refused, UsageError
from harness.patches import hook
from harness.patches._environment import Environment
from harness.patches._patch import Patch
from harness.patches._registry import PATCHES, check_conflicts
from harness.patches._state import Status
from harness.patches.controller.tokenizer_code import ALLOWED

_PACKAGE = Path(__file__).resolve().parent.parent
_SITE = Path(__file__).resolve().parent / "site"


def interpreter_of(command: Sequence[str], python: Path | None) -> Path:
    """Return the interpreter whose environment a command is judged by.

    Only what is called python is asked: a script that is started by its own name would be run.

    Raises:
        UsageError: ``patches.no-command`` or ``patches.no-interpreter``.
    """
    if not command or (python is None and shutil.which(command[0]) is None):
        raise _no_command(command, "no such program" if command else "nothing")
    if python is None and not _is_python(command[0]):
        raise UsageError(
            "patches.no-interpreter",
            expected="python as the command's first word, or --python PYTHON before the --",
            found=command[0],
            where="the command line",
            next=f"harness patches run --python PYTHON -- {shlex.join(command)}",
        )
    return python or Path(command[0])


def needed_in(environment: Environment) -> tuple[Patch, ...]:
    """Return the patches that an environment needs.

    Raises:
        Refused: ``patches.broken``: one that does not fit.
    """
    states = {patch: environment.state(patch) for patch in PATCHES}
    bad = [f"{patch.id} ({state.reason})" for patch, state in states.items()
           if state.status is Status.BROKEN]  # fmt: skip
    if bad:
        raise Refused(
            "patches.broken",
            expected="patches that fit",
            found="; ".join(bad),
            where=f"vLLM {environment.surface.release}",
            next="harness patches check",
        )
    return tuple(patch for patch, state in states.items() if state.status is Status.NEEDED)


@contextmanager
def patched_environment(
    patches: Sequence[Patch],
    *,
    trust_remote_code: bool = False,
    env: Mapping[str, str] | None = None,
) -> Iterator[dict[str, str]]:
    """Give the environment variables for a process in which patches are to be in force.

    Args:
        patches: Which ones; none is a process as it always was.
        trust_remote_code: The user allows the model's own tokenizer code.
        env: The variables to begin with; this process's own when left out.

    Raises:
        Refused: ``patches.conflict``.
    """
    check_conflicts(patches)
    with tempfile.TemporaryDirectory(prefix="harness-patches-") as folder:
        # Only our package, so that nothing else of this environment leaks into the other.
        (Path(folder) / "harness").symlink_to(_PACKAGE)
        found = dict(os.environ if env is None else env)
        for patch in patches:
            for name, value in patch.environment.items():
                found.setdefault(name, value)
        paths = [str(_SITE), folder, *filter(None, [found.get("PYTHONPATH")])]
        found["PYTHONPATH"] = os.pathsep.join(paths)
        found[hook.IDS] = " ".join(patch.id for patch in patches)
        found[hook.MODULES] = " ".join(sorted({patch.module for patch in patches}))
        found[hook.STARTED] = str(Path(folder) / "started")
        found[ALLOWED] = "1" if trust_remote_code else "0"
        yield found


def run(
    command: Sequence[str],
    patches: Sequence[Patch],
    *,
    python: Path | None = None,
    trust_remote_code: bool = False,
) -> int:
    """Run a command with patches in force and return its exit code.

    Args:
        command: ``python their_script.py ARGS``; as the user would start it.
        patches: Which ones.
        python: The interpreter to take where the first word is just some ``python``.
        trust_remote_code: The user allows the model's own tokenizer code.

    Raises:
        UsageError: ``patches.no-command``: there is nothing to run.
        Refused: ``patches.conflict``.
        CheckFailed: ``patches.not-started``: the command ran, and without any patch.
    """
    words = list(command)
    if python is not None and words and _is_python(words[0]):
        words[0] = str(python)
    if not words or shutil.which(words[0]) is None:
        raise _no_command(words, "no such program" if words else "nothing")
    with patched_environment(patches, trust_remote_code=trust_remote_code) as env:
        try:
            process = subprocess.Popen(words, env=env)
        except OSError as error:
            raise _no_command(words, error.strerror or str(error)) from error
        with _passing_on(process):
            code = process.wait()
        if not Path(env[hook.STARTED]).exists():
            raise CheckFailed(
                "patches.not-started",
                expected="a Python that reads sitecustomize from PYTHONPATH",
                found=f"none; the command ran without any patch (exit code {code})",
                where=" ".join(words),
                next="run it without the options -I, -E and -S of python",
            )
    return code if code >= 0 else 128 - code


def _is_python(word: str) -> bool:
    return Path(word).name.startswith(("python", "pypy"))


def _no_command(words: Sequence[str], found: str) -> UsageError:
    return UsageError(
        "patches.no-command",
        expected="a command after -- that can be started: python their_script.py",
        found=f"{shlex.join(words)}: {found}" if words else found,
        where="the command line",
        next="harness patches run -- python their_script.py ARGS",
    )


@contextmanager
def _passing_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Leave it to the script what a signal means: Ctrl-C reaches it anyway, SIGTERM is sent on."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, lambda number, frame: None),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda number, frame: process.terminate()),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
