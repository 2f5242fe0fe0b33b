"""Holds the arrows between our modules, read from the text: imports inside of functions count."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import harness

PACKAGE = Path(harness.__file__).parent
Graph = dict[str, set[str]]


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """All statements but those that only a type checker sees."""
    hidden: list[ast.stmt] = []
    if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
        hidden = node.body
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr) or child in hidden:
            continue
        if isinstance(child, ast.stmt):
            yield child
        yield from statements(child)


def imported(text: str) -> Iterator[tuple[str, ...]]:
    """For each imported name what it may be called as a module, the likelier one first."""
    for node in statements(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from ((alias.name,) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not read"
            yield from ((f"{node.module}.{alias.name}", str(node.module)) for alias in node.names)


def read(package: Path) -> Graph:
    """The modules of a package, and which of them each one imports."""
    files = {
        ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
        for path in package.rglob("*.py")
    }
    graph: Graph = {}
    for module, path in files.items():
        names = imported(path.read_text(encoding="utf-8"))
        found = (next((name for name in some if name in files), None) for some in names)
        graph[module] = {name for name in found if name is not None} - {module}
    return graph


def siblings(graph: Graph) -> Iterator[Graph]:
    """For each folder its modules and folders, and which of them each one imports."""
    for folder in {module.rpartition(".")[0] for module in graph} - {""}:
        inside = f"{folder}."
        found: Graph = {}
        for module, targets in graph.items():
            if module.startswith(inside):
                name = inside + module.removeprefix(inside).partition(".")[0]
                there = {
                    inside + target.removeprefix(inside).partition(".")[0]
                    for target in targets
                    if target.startswith(inside)
                }
                found.setdefault(name, set()).update(there - {name})
        yield found


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """One circle of a graph; empty where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.fixture(scope="module")
def ours() -> Graph:
    graph = read(PACKAGE)
    assert "harness.host.client" in graph["harness.host"]
    return graph


def test_no_two_modules_import_each_other(ours: Graph) -> None:
    assert circle(ours) == []


def test_no_two_folders_import_each_other(ours: Graph) -> None:
    assert [found for graph in siblings(ours) if (found := circle(graph))] == []


@pytest.mark.parametrize(
    ("back", "seen"),
    [
        ("from pack.low import a", True),
        ("from pack import low", True),
        ("import pack.low", True),
        ("def late():\n    from pack.low import a", True),
        ("class A:\n    def late(self):\n        import pack.low", True),
        ("if TYPE_CHECKING:\n    from pack.low import a", False),
        ("if TYPE_CHECKING:\n    import sys\nelse:\n    from pack.low import a", True),
        ("from pack.lower import a", False),
    ],
)
def test_circle_is_seen_wherever_the_import_stands(tmp_path: Path, back: str, seen: bool) -> None:
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "low.py").write_text("from pack.high import a\n")
    (package / "lower.py").write_text("a = 1\n")
    (package / "high.py").write_text(f"a = 1\n{back}\n")
    assert bool(circle(read(package))) is seen


def test_circle_of_folders_is_seen_where_no_modules_are_in_one(tmp_path: Path) -> None:
    for folder, other in (("one", "two"), ("two", "one")):
        room = tmp_path / "pack" / folder
        room.mkdir(parents=True)
        (room / "__init__.py").write_text("")
        (room / "facts.py").write_text("a = 1\n")
        (room / "use.py").write_text(f"from pack.{other}.facts import a\n")
    graph = read(tmp_path / "pack")
    assert circle(graph) == []
    assert [sorted(set(found)) for level in siblings(graph) if (found := circle(level))] == [
        ["pack.one", "pack.two"]
    ]
