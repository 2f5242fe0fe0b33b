"""The static rung before a load: what cannot work is refused before 20 minutes are spent."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import harness
from harness import state
from harness.errors import HarnessError, Refused
from harness.seams import Consumer, Source, Surface, open_source, read_surface
from harness.seams._source import Named
from harness.standing import standing

SKIP: Final = "HARNESS_SKIP_GATE"
"""Environment variable that leaves the check out."""
FOLDER: Final = "surfaces"
"""Subfolder of the state folder with what installations were found to offer."""

_NO = ("", "0", "no", "false", "off")
_CONSUMERS: Final = {"native": Consumer.NATIVE, "patched": Consumer.PATCHED}
# The recipe asks for depth L itself, and only where it is wanted.
_ASKED_ELSEWHERE: Final = ("deepseek.capture is",)


def require_static(
    package: Path, capture: str, *, python: Path, architecture: str, skip: bool = False
) -> None:
    """Refuse a vLLM whose files show that a capture cannot work with it.

    Only what that capture needs counts, and of the models only the one that is loaded. What is
    merely unknown is left to the canary. The first reading takes about a second; afterwards the
    answer is remembered until a file that was read, or the harness itself, changes.

    Args:
        package: Folder of the installed package ``vllm``.
        capture: ``native`` or ``patched``; any other needs nothing.
        python: Its interpreter, for the message.
        architecture: Class of the model, such as ``KimiK25ForConditionalGeneration``.
        skip: Ask nothing; so does ``HARNESS_SKIP_GATE``.

    Raises:
        Refused: ``gate.refused``.
    """
    consumer = _CONSUMERS.get(capture)
    told_off = os.environ.get(SKIP, "").strip().lower() not in _NO
    if skip or told_off or consumer is None or not (package / "__init__.py").is_file():
        return
    try:
        surface = surface_at(package)
    except HarnessError:
        return  # a vLLM that tells no version: the recipe judges that
    require_surface(surface, capture, architecture=architecture, where=package, python=python)


def require_surface(
    surface: Surface, capture: str, *, architecture: str, where: Path, python: Path
) -> None:
    """Refuse a release that shows that a capture cannot work with it.

    Args:
        surface: What it offers.
        capture: As for :func:`require_static`.
        architecture: Class of the model.
        where: Folder of the installed package, for the message.
        python: Its interpreter, for the message.

    Raises:
        Refused: ``gate.refused``.
    """
    consumer = _CONSUMERS.get(capture)
    problems = [
        text
        for text in (standing(surface, consumer, {}).problems if consumer else ())
        if not text.startswith(_ASKED_ELSEWHERE) and _concerns(text, architecture)
    ]
    if problems:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise Refused(
            "gate.refused",
            expected=f"a vLLM that has what the {capture} capture touches",
            found=f"{problems[0]}{more}",
            where=f"vLLM {surface.release} in {where}",
            next=f"harness gate --python {python} says what moved and where to; "
            "--skip-gate loads all the same",
        )


def surface_at(package: Path) -> Surface:
    """Return what an installed package offers; from memory where its files are as they were.

    Raises:
        HarnessError: As :func:`harness.seams.read_surface`.
    """
    key = hashlib.sha256(str(package.absolute()).encode()).hexdigest()[:24]
    path = state.state_folder() / FOLDER / f"{key}.json"
    record = state.read_record(path)
    if record is not None and (kept := _kept(record, package)) is not None:
        return kept
    named = open_source(package.parent)
    watched = _Watched(named.source)
    surface = read_surface(Named(watched, named.release, named.build)).whole()
    _remember(path, package, surface, watched)
    return surface


class _Watched:
    """A source that notes what is read, and what is looked for in vain."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.asked: set[str] = set()

    @property
    def where(self) -> str:
        return self._source.where

    def read(self, path: str) -> str | None:
        self.asked.add(path)
        return self._source.read(path)

    def paths(self) -> Iterator[str]:
        return self._source.paths()


def _kept(record: dict[str, Any], package: Path) -> Surface | None:
    try:
        root = package.parent
        if record["by"] != _reader() or any(
            _stamp(root / path) != stamp for path, stamp in record["files"].items()
        ):
            return None
        return Surface.loads(record["surface"])
    except (KeyError, TypeError, AttributeError, HarnessError):
        return None


def _remember(path: Path, package: Path, surface: Surface, watched: _Watched) -> None:
    files = {asked: _stamp(package.parent / asked) for asked in sorted(watched.asked)}
    body = {"by": _reader(), "files": files, "surface": surface.dumps()}
    try:
        state.write_record(path, body)
    except HarnessError:
        return  # a second more at the next load


def _stamp(file: Path) -> list[int] | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    return [stat.st_mtime_ns, stat.st_size]


def _reader() -> list[Any]:
    """What reads: another inventory, or another way of reading, makes the memory stale."""
    files = sorted((Path(__file__).parents[1] / "seams").glob("*.py"))
    return [harness.__version__, *(_stamp(file) for file in files)]


def _concerns(problem: str, architecture: str) -> bool:
    """Whether a problem is met by this model; seams of models are called after them."""
    name = problem.partition(" ")[0].partition(".")[0]
    if name == "kimi":
        return architecture.startswith("KimiK25")
    if name == "deepseek":
        return architecture.startswith(("KimiK25", "Deepseek"))
    return True
