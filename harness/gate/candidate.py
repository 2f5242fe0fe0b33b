"""From what a user names to the surface of a candidate; nothing is installed or imported."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from harness.errors import NotComparable, UsageError
from harness.gate import _fetch
from harness.gate._fetch import LATEST
from harness.gate._hints import Hints
from harness.gate.verdict import Side
from harness.seams import Named, Surface, open_source, read_surface, recorded, releases, spelled

UNTOLD = "untold"
"""Release of files that do not say theirs, such as a checkout."""


@dataclass(frozen=True)
class Candidate:
    """A release that is asked about.

    Attributes:
        surface: What it offers at all seams.
        side: What it calls itself, for the answer.
        named: Its files; None for a recorded release.
        python: Its interpreter, where the user named one.
    """

    surface: Surface
    side: Side
    named: Named | None = None
    python: Path | None = None

    @property
    def hints(self) -> Hints:
        """A search through its files."""
        return Hints(self.named.source if self.named is not None else None)

    @property
    def version(self) -> Version | None:
        """Its release, where it tells one."""
        return version_of(self.surface.release)


def version_of(release: str) -> Version | None:
    """Return a release as a version; None where it is none."""
    try:
        return Version(release)
    except InvalidVersion:
        return None


@contextmanager
def candidate_of(name: str, *, release: str | None = None) -> Iterator[Candidate]:
    """Open what a user names, and take away what was fetched for it.

    Args:
        name: A wheel, a source archive, a folder that holds ``vllm/``, an environment or its
            interpreter; or a version: recorded, or fetched by pip; or ``latest``. See
            :func:`version_named` for what is a version.
        release: The version, where the source does not tell it.

    Raises:
        UsageError: ``seams.*``, ``gate.no-such-release``; ``gate.no-version`` for a release that
            is none.
        NotComparable: ``gate.not-fetched``, ``gate.no-pip``.
    """
    wanted = version_named(name)
    if wanted is None:
        yield _read(name, release)
    elif wanted in releases():
        yield known(wanted)
    else:
        with tempfile.TemporaryDirectory(prefix="harness-gate-") as folder:
            yield _read(str(_fetch.fetch(wanted, Path(folder))), release, said=wanted)


def known(release: str) -> Candidate:
    """Return a recorded release.

    Raises:
        NotComparable: ``seams.no-record``.
    """
    surface = recorded(release)
    said = surface.release
    return Candidate(surface, Side(said, f"recorded {surface.build}", surface.digest, said))


def known_good(candidate: Candidate) -> str | None:
    """Return the release to hold a candidate against, where the user names none.

    The newest recorded one that is not newer and not the same content. Files that tell no
    version are held against the newest; the oldest recorded release against itself.
    """
    version = candidate.version
    if version is None:
        return releases()[-1] if releases() else None
    older = [one for one in releases() if Version(one) <= version]
    for one in reversed(older):
        if recorded(one).digest != candidate.surface.digest:
            return one
    return older[-1] if older else None


def version_named(name: str) -> str | None:
    """Return the version that a name stands for; None where it names files or a program.

    As with pip, what reads as a version is one whatever lies in the working directory; a folder
    of that name is ``./NAME``.
    """
    if name == LATEST:
        return LATEST
    text = name.removeprefix("vllm==").removeprefix("v")
    if os.sep in name or version_of(text) is None:
        return None
    # Nothing is fetched for another spelling of what is recorded.
    return spelled(text) or text


def _read(name: str, release: str | None, said: str | None = None) -> Candidate:
    named = _opened(name, release)
    surface = read_surface(named)
    python = _interpreter(name)
    label = said or (str(name) if python is not None else Path(name).name)
    side = Side(surface.release, surface.build, surface.digest, label)
    return Candidate(surface, side, named, python)


def _opened(name: str, release: str | None) -> Named:
    said = _public(release) if release is not None else None
    try:
        return open_source(name, release=said)
    except NotComparable as error:
        # A checkout tells no version before it is built; its files are there all the same.
        if error.failure.id != "seams.no-release" or said is not None:
            raise
        return open_source(name, release=UNTOLD)


def _public(release: str) -> str:
    """Return a release without its local part, as sources are read too."""
    version = version_of(release)
    if version is None:
        raise UsageError(
            "gate.no-version",
            expected="a version, such as 0.32.0",
            found=release,
            where="--release",
            next="harness gate SOURCE --release 0.32.0",
        )
    return version.public


def _interpreter(name: str) -> Path | None:
    path = Path(name)
    if path.is_dir():
        inner = path / "bin" / "python"
        return inner if (path / "pyvenv.cfg").is_file() and inner.exists() else None
    if path.name.endswith((".whl", ".tar.gz", ".tgz")):
        return None
    found = shutil.which(name)
    # Not resolved: the link in an environment's bin folder is what selects the environment.
    return Path(found).absolute() if found else None
