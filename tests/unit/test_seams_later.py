"""What is read of a method without parsing it is what the parsed method says."""

from __future__ import annotations

import ast
import gc
import weakref
from pathlib import Path
from textwrap import indent

import pytest

from harness.seams import Source, _later, _parts, _read, read_surface
from harness.seams._classes import _targets
from harness.seams._later import outlined, put_off, text_of
from harness.seams._lines import texts
from harness.seams._parts import Names
from harness.seams._returns import shapes
from harness.seams._signature import of_function
from harness.seams._slices import given, may_store, returned, stored
from harness.seams._syntax import assigned
from harness.seams._tree import Tree
from harness.seams._walk import returns, walk
from harness.seams.seam import Kind, Seam
from tests.unit.edited import installed

LARGE = (
    "vllm/v1/worker/gpu_model_runner.py",
    "vllm/v1/core/sched/scheduler.py",
    "vllm/config/vllm.py",
    "vllm/v1/executor/multiproc_executor.py",
)
METHOD = (
    "    def f(self, x=1):\n        # no more than a line of text, and long enough to be put off\n"
)
FILLER = "        a = 'something to make this method long enough to be put off'\n"


def one(body: str) -> str:
    return f"{METHOD}{FILLER}{body}"


CLASSES = {
    "plain": "class C:\n    y: int = 1\n\n" + one("        return 1\n") + "\n    z = 2\n",
    "decorated": "class C:\n    @property\n" + one("        return 1\n"),
    "asynchronous": "class C:\n" + one("").replace("def", "async def"),
    "head of many lines": "class C:\n"
    + one("").replace("self, x=1", "\n        self,\n        x: int = 1,\n    ")
    + "        return 2\n",
    "method in a text": 'class C:\n    """\n' + one("        pass\n") + '    """\n' + one(""),
    "text at the edge": "class C:\n" + one('        a = """\n    def g(self):\n"""\n') + one(""),
    "two kinds of quotes": "class C:\n" + one("        a = '''\n    def g(self):\n'''\n") + one(""),
    "other depth": "class C:\n  if True:\n" + one("        return 1\n") + "  z = 1\n",
    "under a test": "class C:\n    if x:\n" + indent(one(""), "    "),
    "line that goes on": "class C:\n" + one("        a = 1 + \\\n    2\n") + one(""),
    "bracket at the edge": "class C:\n" + one("        a = (\n    1,\n        )\n") + one(""),
    "head with a default that opens": "class C:\n"
    + one("").replace("x=1", "x={1: lambda:\n        2}"),
    "comment behind": "class C:\n" + one("        return 1\n    # last\n        # words\n"),
    "one line": "class C:\n    def f(self): return '" + "x" * 120 + "'\n" + one(""),
}


@pytest.mark.parametrize("shape", CLASSES)
def test_class_read_in_parts_is_the_class(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_later, "_SMALLEST", 0)
    text = CLASSES[shape]
    (whole,) = ast.parse(text).body
    found = outlined(text, 0, texts(text) or [])
    assert isinstance(whole, ast.ClassDef)
    for node in found or ():
        assert isinstance(node, ast.ClassDef)
        assert [(m.lineno, m.end_lineno) for m in node.body] == [
            (m.lineno, m.end_lineno) for m in whole.body
        ]
        assert ast.dump(node) == ast.dump(whole)


FUNCTIONS = {
    "plain": "def f(x: int = 1, *, y) -> int:\n    return x\n",
    "asynchronous": "async def f(x):\n    await x\n    return x, 1\n",
    "head of many lines": "def f(\n    x,\n\n    y={\n    },  # two\n) -> dict[\n    str, int\n]:\n"
    "    if x:\n        return None\n    return {}\n",
    "inner": "def f():\n    def g():\n        return 1\n    return g\n",
    "one line": "def f(x): return x\n\n# and a comment that belongs to nobody\n",
    "text at the edge": 'def f():\n    return """\ndef g(): ...\n"""\n',
}


@pytest.mark.parametrize("shape", FUNCTIONS)
def test_function_that_is_put_off_is_the_function(
    shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_later, "_WORTH", 0)
    text = FUNCTIONS[shape]
    (whole,) = ast.parse(text).body
    assert isinstance(whole, ast.FunctionDef | ast.AsyncFunctionDef)
    (named,), (looked_at,) = put_off(text, 4) or [None], put_off(text, 4) or [None]
    assert named is not None
    assert looked_at is not None
    assert (named.name, named.lineno, named.end_lineno) == (
        whole.name, whole.lineno + 4, (whole.end_lineno or 0) + 4,
    )  # fmt: skip
    assert "body" not in vars(named)
    assert of_function(named) == of_function(whole)
    assert shapes(named) == shapes(whole)
    assert ast.dump(looked_at) == ast.dump(whole)


def test_decorated_function_is_parsed_at_once() -> None:
    text = "@cache\ndef f():\n    return '" + "x" * 200 + "'\n"
    assert put_off(text, 0) is None


def test_large_function_of_a_module_is_not_parsed_for_its_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_parts, "_SMALLEST", 0)
    text = "import os\n\n\ndef f(a, b=1):\n    x = a\n" + "    x += b  # more\n" * 50
    (bound,) = Names.of(text).get("f")
    assert isinstance(bound.value, ast.FunctionDef)
    assert of_function(bound.value) == "(a, b=1)"
    assert "body" not in vars(bound.value)


def test_methods_are_put_off_and_no_walk_passes_them_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_later, "_SMALLEST", 0)
    text = CLASSES["plain"]
    (node,) = outlined(text, 0, []) or ()
    assert isinstance(node, ast.ClassDef)
    (method,) = [part for part in node.body if text_of(part) is not None]
    assert "body" not in vars(method)
    assert any(isinstance(part, ast.Return) for part in walk(node))


def methods(path: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    text = installed().text(path)
    names = Names.of(text)
    found = [
        method
        for part in ast.parse(text).body
        if isinstance(part, ast.ClassDef)
        for bound in names.get(part.name)
        for method in getattr(bound.value, "body", ())
        if text_of(method) is not None
    ]
    assert found, path
    return found


@pytest.mark.parametrize("path", LARGE)
def test_statements_read_alone_are_those_of_the_parsed_method(path: str) -> None:
    for method in methods(path):
        text = text_of(method)
        assert text is not None
        told = returned(text)
        if told is not None:
            values = [part.value for part in returns(method)]
            assert [_dump(value) for value in told] == [_dump(value) for value in values]
        first: dict[str, ast.expr | None] = {}
        for name, value in _targets(method):
            first.setdefault(name, value)
        for name, value in first.items():
            assert may_store(text, name), name
            alone = stored(text, name)
            assert alone is None or _dump(alone) == _dump(value), name
        for name in {"async_scheduling", *first}:
            some = given(text, name)
            every = [_dump(value) for value in assigned(list(method.body), name)]
            assert some is None or [_dump(value) for value in some] == every, name


def _dump(node: ast.expr | None) -> str:
    return "" if node is None else ast.dump(node)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("        if x: return 1\n        return 2\n", None),
        ("        def g():\n            return 1\n        return g\n", 1),
        ("        return (1,\n    2,\n        )\n", None),
        ('        """\n        return 1\n        """\n', 0),
        ("        # so: return 1\n        return 2\n", 1),
        ("        return \\\n            2\n", None),
    ],
)
def test_returns_are_told_where_the_lines_tell_them(body: str, told: int | None) -> None:
    found = returned(one(body))
    assert (None if found is None else len(found)) == told


@pytest.mark.parametrize(
    "line",
    [
        "self.x = 1", "self.x: int = 1", "self.x += 1", "self.x, y = 1, 2", "y, self.x = 1, 2",
        "(\n            y,\n            self.x,\n        ) = z", "y = self.x = 1",
        "with z as self.x:\n            pass", "with z as (y, self.x):\n            pass",
        "[self.x, *y] = z", "self.x \\\n            = 1", "self.x //= 2", "self . x = 1",
    ],
)  # fmt: skip
def test_every_way_to_store_is_seen(line: str) -> None:
    text = one(f"        {line}\n")
    (cls,) = ast.parse(f"class C:\n{text}").body
    assert isinstance(cls, ast.ClassDef)
    assert isinstance(cls.body[0], ast.FunctionDef)
    assert "x" in dict(_targets(cls.body[0]))
    assert may_store(text, "x")


def test_method_that_is_parsed_and_no_python_takes_its_module_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_parts, "_SMALLEST", 0)
    monkeypatch.setattr(_later, "_SMALLEST", 0)
    package = tmp_path / "vllm"
    package.mkdir()
    (package / "__init__.py").write_text("")
    broken = "class C:\n    y = 1\n" + one("        self.x, y = 1, 2\n        if x return 1\n")
    (package / "m.py").write_text(broken)
    seams = [
        Seam("c", Kind.CLASS, ("vllm.m:C",), ()),
        Seam("x", Kind.ATTRIBUTE, ("vllm.m:C.x",), ()),
    ]
    surface = read_surface(tmp_path, release="9.9.9", seams=seams)
    assert [surface.entry(seam.id).kind for seam in seams] == ["missing", "missing"]


def test_reading_a_release_parses_a_small_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard of the static rung's speed: most of its time is parsing."""
    named = installed().named
    read: dict[str, int] = {}
    parsed: list[int] = []
    whole, source_read = ast.parse, named.source.read

    def parse(source: str, *args: object, **more: object) -> ast.AST:
        parsed.append(len(source.strip()) - source.count("\n"))
        return whole(source, *args, **more)  # type: ignore[call-overload,no-any-return]

    def counted(path: str) -> str | None:
        text = source_read(path)
        read[path] = len(text or "")
        return text

    monkeypatch.setattr(ast, "parse", parse)
    monkeypatch.setattr(named.source, "read", counted)
    read_surface(named)
    assert len([size for size in read.values() if size]) < 120
    assert sum(parsed) < 0.25 * sum(read.values())


def test_what_was_parsed_is_gone_before_the_collector_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The collector would walk it all: a tenth of the time of a reading."""
    made: list[weakref.ref[Tree]] = []
    alive: list[bool] = []

    def tree(source: Source, whole: bool = False) -> Tree:
        new = Tree(source, whole=whole)
        made.append(weakref.ref(new))
        return new

    monkeypatch.setattr(_read, "Tree", tree)
    monkeypatch.setattr(_read.gc, "enable", lambda: alive.append(made[-1]() is not None))
    try:
        read_surface(installed().named)
    finally:
        monkeypatch.undo()
        gc.enable()
    assert alive == [False]
