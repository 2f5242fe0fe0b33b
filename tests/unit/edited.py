"""A real release with one edit: only what the edit touches is parsed again."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from harness.gate._hints import Hints
from harness.seams import SEAMS, Source, Surface
from harness.seams._classes import Classes
from harness.seams._read import read_entry
from harness.seams._source import FolderSource, Named, open_folder
from harness.seams._tree import Tree
from harness.seams.probes import PROBES


@dataclass
class Edited:
    """The files of a release with other texts at some paths; None: no such file."""

    base: Source
    texts: dict[str, str | None] = field(default_factory=dict)

    @property
    def where(self) -> str:
        return f"{self.base.where}, edited"

    def read(self, path: str) -> str | None:
        return self.texts[path] if path in self.texts else self.base.read(path)

    def paths(self):  # type: ignore[no-untyped-def]
        there = dict.fromkeys(self.base.paths()) | dict(self.texts)
        return (path for path in there if self.read(path) is not None)


@dataclass(frozen=True)
class Release:
    """An installed release, read once.

    Attributes:
        named: Its files.
        classes: What was parsed of them.
        surface: What it offers.
    """

    named: Named
    classes: Classes
    surface: Surface

    def text(self, path: str) -> str:
        found = self.named.source.read(path)
        assert found is not None, path
        return found

    def edited(self, texts: dict[str, str | None]) -> tuple[Surface, Hints]:
        """Read the release again with other files; the hints search these."""
        source = Edited(self.named.source, texts)
        changed = {path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
                   for path in texts}  # fmt: skip
        tree = Tree(source)
        tree._cache.update(
            {name: module for name, module in self.classes.tree._cache.items()
             if name not in changed and module is not None}
        )  # fmt: skip
        classes = Classes(tree)
        classes._classes.update(
            {key: cls for key, cls in self.classes._classes.items() if key[0] not in changed}
        )
        classes._assigned.update(
            {key: one for key, one in self.classes._assigned.items() if key[0] not in changed}
        )
        here = {path: text for path, text in texts.items() if text is not None}
        there = {path: text for path, text in _texts(self).items() if path not in texts}
        classes.fields.update(
            {
                key: fields
                for key, fields in self.classes.fields.items()
                if not changed & {cls.module for cls in self.classes._orders[key]}
            }
        )
        return _surface(self.named, classes), Hints(source, there | here)


@cache
def installed() -> Release:
    """Return the vLLM of this interpreter; the test is skipped where there is none."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("no vLLM is installed here; next: make gen2")
    return opened(Path(next(iter(spec.submodule_search_locations))).parent)


@cache
def opened(root: Path) -> Release:
    named = open_folder(root)
    assert isinstance(named.source, FolderSource)
    classes = Classes(Tree(named.source))
    return Release(named, classes, _surface(named, classes))


@cache
def _texts_at(root: str) -> dict[str, str]:
    """Read what hints search, once: the files beside the seams and one file elsewhere."""
    wanted = ("config", "v1/core", "v1/executor", "v1/worker", "engine", "model_executor/models")
    package = Path(root) / "vllm"
    files = [file for folder in wanted for file in (package / folder).rglob("*.py")]
    files += (package / "distributed" / "kv_transfer" / "kv_connector" / "v1").glob("*.py")
    return {
        file.relative_to(root).as_posix(): file.read_text(encoding="utf-8", errors="replace")
        for file in files
    }


def _texts(release: Release) -> dict[str, str]:
    return _texts_at(release.named.source.where)


def _surface(named: Named, classes: Classes) -> Surface:
    return Surface(
        named.release,
        named.build,
        {seam.id: read_entry(classes, seam) for seam in SEAMS},
        {name: probe(classes) for name, probe in PROBES.items()},
    )
