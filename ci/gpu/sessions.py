"""The pytest sessions of a run: which there are, and what became of each."""

from __future__ import annotations

import re
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import deadline

_OK, _INTERRUPTED, _NO_TESTS = 0, 130, 5
_ALWAYS = ("-m", "gpu", "--hs-require-gpu")
# One session for all that is not slow: plain, native and patched engine, each loaded once.
LANE = 'tests/gpu -m "gpu and not slow"'
# Files are timed on a disk in memory; without room for a batch there, on the usual one.
MEMORY = Path("/dev/shm")
_ROOM = 16 << 30
# The checkout's own settings may ask for plugins that the box lacks. -s: figures are printed.
_QUIETLY = ("-o", "addopts=-ra", "-p", "no:cacheprovider", "-v", "-s")


@dataclass(frozen=True)
class Session:
    """One call of pytest: a name for its files, and the arguments that are its own."""

    name: str
    arguments: tuple[str, ...]

    @property
    def shown(self) -> str:
        """Return the call as evidence tells of it, without paths of the machine."""
        words = [Path(word).name if word.startswith("/") else word for word in self.arguments]
        return shlex.join(["pytest", *_ALWAYS, *words])


@dataclass(frozen=True)
class Outcome:
    """What became of a session: its exit code, None where it was not started; its files.

    ``temp`` is where pytest's temporary folders were, and engines' logs are.
    """

    session: Session
    code: int | None
    folder: Path
    temp: Path

    @property
    def report(self) -> Path:
        return self.folder / "junit.xml"

    @property
    def output(self) -> Path:
        return self.folder / "output.txt"


@dataclass(frozen=True)
class Setting:
    """Where sessions run: interpreter with the pack, checkout, environment, model, deadline."""

    python: Path
    checkout: Path
    environment: Mapping[str, str]
    model: Path | None
    until: float
    grace: float = deadline.GRACE


def choose(given: Sequence[str], extra: Sequence[str]) -> tuple[Session, ...]:
    """Return the sessions: those asked for, or the one that is the lane."""
    asked = [tuple(shlex.split(text)) for text in given or [LANE]]
    return tuple(
        Session(f"{number}-{_stem(arguments)}", (*arguments, *extra))
        for number, arguments in enumerate(asked, start=1)
    )


def _stem(arguments: Sequence[str]) -> str:
    if arguments == tuple(shlex.split(LANE)):
        return "lane"
    path = next((one for one in arguments if not one.startswith("-")), "session")
    return re.sub(r"[^\w.-]", "-", Path(path.split("::")[0]).stem) or "session"


def run(
    sessions: Sequence[Session], setting: Setting, home: Path, scratch: Path
) -> tuple[Outcome, ...]:
    """Run one session after the other until the deadline; Ctrl-C ends the run, not this call.

    Args:
        sessions: What to run.
        setting: Where.
        home: For reports and outputs.
        scratch: For what the tests write themselves.
    """
    outcomes: list[Outcome] = []
    for session in sessions:
        folder, temp = home / session.name, scratch / session.name
        folder.mkdir(parents=True)
        temp.mkdir(parents=True)
        code: int | None = None
        if time.monotonic() < setting.until and not stopped(outcomes):
            code = _run_one(session, setting, folder, temp)
        outcomes.append(Outcome(session, code, folder, temp))
    return tuple(outcomes)


def scratch_parent() -> Path | None:
    """Return the disk in memory, or None where there is no room for a batch of files."""
    try:
        return MEMORY if shutil.disk_usage(MEMORY).free >= _ROOM else None
    except OSError:
        return None


def _run_one(session: Session, setting: Setting, folder: Path, temp: Path) -> int:
    model = () if setting.model is None else ("--hs-model", str(setting.model))
    command = [
        *(str(setting.python), "-m", "pytest", *_ALWAYS, *_QUIETLY),
        *("--hs-python", str(setting.python), *model),
        *(f"--junitxml={folder / 'junit.xml'}", f"--basetemp={temp / 'tmp'}"),
        *session.arguments,
    ]
    try:
        return deadline.run(
            command,
            output=folder / "output.txt",
            until=setting.until,
            cwd=setting.checkout,
            env=setting.environment,
            grace=setting.grace,
        )
    except KeyboardInterrupt:
        return _INTERRUPTED


def stopped(outcomes: Sequence[Outcome]) -> bool:
    """Say whether somebody interrupted the run."""
    return any(one.code == _INTERRUPTED for one in outcomes)


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """Return the run's exit code: pytest's first that is no success, or why the run was ended."""
    codes = [one.code for one in outcomes]
    if stopped(outcomes):
        return _INTERRUPTED
    if None in codes or deadline.TIMED_OUT in codes:
        return deadline.TIMED_OUT
    bad = [code for code in codes if code not in (None, _OK, _NO_TESTS)]
    if bad:
        return bad[0] or _OK
    return _OK if _OK in codes else _NO_TESTS
