"""Small stand-ins for a vLLM release: a few modules as text, in every form a source can have."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

from harness.seams import Call, Consumer, Entry, Finding, Kind, Seam, Surface, Use, read_surface
from harness.seams import bind as bind_all

VERSION = "0.99.1"
METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\n"
# Reading must never run it.
INIT = "raise RuntimeError('vllm was imported')\n"

Files = Mapping[str, str]


def whole(files: Files) -> dict[str, str]:
    """The files of a release by path, with the ``__init__.py`` of every folder."""
    texts = {f"vllm/{path}": dedent(text) for path, text in files.items()}
    for path in list(texts):
        folders = Path(path).parents
        for folder in list(folders)[:-1]:
            texts.setdefault(f"{folder}/__init__.py", INIT if str(folder) == "vllm" else "")
    texts.setdefault("vllm/__init__.py", INIT)
    return texts


def folder(root: Path, files: Files, *, name: str = "vllm", version: str = VERSION) -> Path:
    """Write a release as site-packages holds it."""
    for path, text in whole(files).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    distribution(root, name=name, version=version)
    return root


def distribution(root: Path, *, name: str, version: str) -> None:
    """Write the metadata of a distribution."""
    info = root / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(METADATA.format(name=name, version=version))


def wheel(root: Path, files: Files, *, name: str = "vllm", version: str = VERSION) -> Path:
    """Write a release as a wheel."""
    stem = f"{name.replace('-', '_')}-{version}"
    path = root / f"{stem}-cp38-abi3-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inner, text in whole(files).items():
            archive.writestr(inner, text)
        archive.writestr(f"{stem}.dist-info/METADATA", METADATA.format(name=name, version=version))
    return path


def sdist(root: Path, files: Files, *, version: str = VERSION) -> Path:
    """Write a release as a source archive."""
    path = root / f"vllm-{version}.tar.gz"
    texts = {**whole(files), "PKG-INFO": METADATA.format(name="vllm", version=version)}
    with tarfile.open(path, "w:gz") as archive:
        for inner, text in texts.items():
            info = tarfile.TarInfo(f"vllm-{version}/{inner}")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return path


def surface(root: Path, files: Files, *seams: Seam) -> Surface:
    """Read some seams of a release."""
    return read_surface(folder(root, files), seams=seams)


def entry(root: Path, files: Files, kind: Kind, *paths: str) -> Entry:
    """Read one seam of a release."""
    return surface(root, files, Seam("x", kind, paths, ())).entry("x")


def relied(
    kind: Kind, path: str, *calls: Call, owners: tuple[str, ...] = (), optional: bool = False
) -> Seam:
    """A seam that the native capture relies on."""
    use = Use(Consumer.NATIVE, calls, optional=optional)
    return Seam("x", kind, (path,), (use,), owners=owners)


def findings(root: Path, files: Files, seam: Seam) -> list[tuple[str, str]]:
    """Bind one seam; kind and subject of each finding."""
    found: tuple[Finding, ...] = bind_all(surface(root, files, seam), seams=[seam])
    return [(one.kind, one.subject) for one in found]
