"""From what a user names to the files of a release; vLLM is never imported."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from harness.errors import NotComparable, UsageError
from harness.seams._source import Named, open_archive, open_folder, open_wheel

# Finding the spec of a top-level package runs none of its code.
_ASK = """
import importlib.util as u
spec = u.find_spec("vllm")
print("\\n" + next(iter(spec.submodule_search_locations)) if spec else "\\n")
"""


def open_source(source: Path | str, *, release: str | None = None) -> Named:
    """Open a wheel, a source archive, a folder or an interpreter's environment.

    Args:
        source: ``*.whl``; ``*.tar.gz``; a folder that holds ``vllm/`` (also the root of a
            virtual environment); or a Python executable, by path or by name.
        release: The version, where the source does not tell it.

    Raises:
        UsageError: ``seams.no-source``, ``seams.no-vllm``, ``seams.broken-archive``,
            ``seams.too-large``.
        NotComparable: ``seams.no-release``, ``seams.no-answer``.
    """
    path = Path(source)
    if path.is_dir():
        inner = _environment(path)
        if inner is not None:
            return open_folder(inner, release, form="environment")
        return open_folder(path, release)
    if path.suffix == ".whl" and path.is_file():
        return open_wheel(path, release)
    if path.name.endswith((".tar.gz", ".tgz")) and path.is_file():
        return open_archive(path, release)
    python = shutil.which(path)
    script = python is not None and _is_script(Path(python))
    if python is None or script:
        raise UsageError(
            "seams.no-source",
            expected="a wheel, a source archive, a folder or an interpreter",
            found="a script, which is not run to see what it is"
            if script
            else "nothing that can be read or run"
            if path.exists()
            else "no such file",
            where=str(path),
            next="pip download --no-deps --only-binary=:all: vllm==RELEASE, then name the wheel",
        )
    # Not resolved: the link in an environment's bin folder is what selects the environment.
    return open_folder(_ask(Path(python).absolute()).parent, release, form="environment")


def _is_script(program: Path) -> bool:
    """Whether asking a program would run somebody's script; a wrapper is called python."""
    if program.name.startswith(("python", "pypy")):
        return False
    try:
        with program.open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False  # what cannot be read may still run, and does not answer if it is none


def _environment(root: Path) -> Path | None:
    """Return site-packages of a virtual environment's root folder."""
    if not (root / "pyvenv.cfg").is_file():
        return None
    return next(iter(sorted(root.glob("lib/python*/site-packages"))), None)


def _ask(python: Path) -> Path:
    try:
        done = subprocess.run(
            [str(python), "-c", _ASK],
            cwd=os.sep,
            capture_output=True,
            text=True,
            timeout=30,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _no_answer(python, type(error).__name__) from error
    if done.returncode != 0:
        raise _no_answer(python, (done.stderr.strip().splitlines() or ["no message"])[-1])
    lines = done.stdout.splitlines()
    if not lines:
        raise _no_answer(python, "nothing")
    found = lines[-1].strip()
    if not found:
        raise UsageError(
            "seams.no-vllm",
            expected="an environment with vLLM",
            found="none",
            where=str(python),
            next="give the interpreter of an environment with vLLM, or a wheel",
        )
    return Path(found)


def _no_answer(python: Path, found: str) -> NotComparable:
    return NotComparable(
        "seams.no-answer",
        expected="an interpreter that says where its vllm lies",
        found=found,
        where=str(python),
        next="give its site-packages folder instead",
    )
