"""A real release with one edit: only what the edit can touch is read again."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from harness.gate._hints import Hints
from harness.seams import SEAMS, Entry, Source, Surface
from harness.seams._classes import Classes
from harness.seams._envs import Variables
from harness.seams._read import read_entry
from harness.seams._source import FolderSource, Named, open_folder
from harness.seams._tree import Module, Tree
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

    def paths(self) -> Iterator[str]:
        there = dict.fromkeys(self.base.paths()) | dict(self.texts)
        return (path for path in there if self.read(path) is not None)


@dataclass
class Watched(Tree):
    """A tree that notes which modules are asked for."""

    asked: set[str] = field(default_factory=set)

    def module(self, name: str) -> Module | None:
        self.asked.add(name)
        return super().module(name)

    def variables(self, name: str) -> Variables | None:
        self.asked.add(name)
        return super().variables(name)


@dataclass(frozen=True)
class Release:
    """An installed release, read once.

    Attributes:
        named: Its files.
        classes: What was parsed of them.
        surface: What it offers.
        asked: Seam or probe -> the modules that decide it.
    """

    named: Named
    classes: Classes
    surface: Surface
    asked: dict[str, frozenset[str]]

    def text(self, path: str) -> str:
        found = self.named.source.read(path)
        assert found is not None, path
        return found

    def write(self, root: Path) -> None:
        """Write the files at the seams into a folder."""
        tree = self.classes.tree
        for name in (*tree._cache, *tree._variables):
            is_package, text = tree._text(name)
            if text is not None:
                path = root / (name.replace(".", "/") + ("/__init__.py" if is_package else ".py"))
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")

    def edited(self, texts: dict[str, str | None]) -> tuple[Surface, Hints]:
        """Read the release again with other files; the hints search these."""
        source = Edited(self.named.source, texts)
        changed = {_module(path) for path in texts}
        tree = Tree(source)
        tree._cache.update(
            {name: module for name, module in self.classes.tree._cache.items()
             if name not in changed and module is not None}
        )  # fmt: skip
        classes = Classes(tree)
        for mine, theirs in (
            (classes._classes, self.classes._classes),
            (classes._assigned, self.classes._assigned),
        ):
            mine.update({key: one for key, one in theirs.items() if key[0] not in changed})  # type: ignore[attr-defined]
        entries: dict[str, Entry] = dict(self.surface.entries)
        probes = dict(self.surface.probes)
        for seam in SEAMS:
            if changed & self.asked[seam.id]:
                entries[seam.id] = read_entry(classes, seam)
        for name, probe in PROBES.items():
            if changed & self.asked[name]:
                probes[name] = probe(classes)
        surface = Surface(self.named.release, self.named.build, entries, probes)
        here = {path: text for path, text in texts.items() if text is not None}
        searched = _texts_at(self.named.source.where)
        there = {path: text for path, text in searched.items() if path not in texts}
        return surface, Hints(source, there | here)


@cache
def installed() -> Release:
    """Return the vLLM of this interpreter; the test is skipped where there is none."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("no vLLM is installed here; next: make gen2")
    named = open_folder(Path(next(iter(spec.submodule_search_locations))).parent)
    assert isinstance(named.source, FolderSource)
    tree = Watched(named.source)
    shared = Classes(tree)
    asked: dict[str, frozenset[str]] = {}
    entries: dict[str, Entry] = {}
    probes: dict[str, str] = {}
    for seam in SEAMS:
        entries[seam.id] = read_entry(_apart(shared), seam)
        asked[seam.id] = frozenset(tree.asked)
    for name, probe in PROBES.items():
        probes[name] = probe(_apart(shared))
        asked[name] = frozenset(tree.asked)
    surface = Surface(named.release, named.build, entries, probes)
    return Release(named, shared, surface, asked)


def _apart(shared: Classes) -> Classes:
    """Return classes that remember no way through the modules, so that each way is noted."""
    tree = shared.tree
    assert isinstance(tree, Watched)
    tree.asked.clear()
    return Classes(tree, _classes=shared._classes, _assigned=shared._assigned)


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def _texts_at(root: str) -> dict[str, str]:
    """Read what hints search, once: the files beside the seams."""
    wanted = ("config", "v1/core", "v1/executor", "v1/worker", "engine", "model_executor/models")
    package = Path(root) / "vllm"
    files = [file for folder in wanted for file in (package / folder).rglob("*.py")]
    files += (package / "distributed" / "kv_transfer" / "kv_connector" / "v1").glob("*.py")
    return {
        file.relative_to(root).as_posix(): file.read_text(encoding="utf-8", errors="replace")
        for file in files
    }
