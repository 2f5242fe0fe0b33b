"""A large module read in parts binds what it binds as a whole; a value is written in one way."""

from __future__ import annotations

import ast
import re

import pytest

from harness.seams import _parts
from harness.seams._bindings import bindings
from harness.seams._flow import Flow
from harness.seams._forms import at, fits
from harness.seams._parts import Names
from tests.unit.edited import installed

SHAPES = {
    "plain": "import a\n\n\ndef f(x):\n    return x\n\n\nclass C:\n    y = 1\n\n\nz = f(1)\n",
    "decorated": "@a\n@b(\n    1,\n)\nclass C(\n    D,\n):\n    pass\nx = 1\n",
    "overloads": "@overload\ndef f(x: int): ...\n@overload\ndef f(x: str): ...\n"
    "def f(x):\n    return 2\n",
    "redefined": "from m import f\ndef f(): ...\nfrom n import f\n",
    "fallback": "try:\n    from m import f\nexcept ImportError:\n    def f(): ...\n",
    "text at the edge": 'def f():\n    return """\nclass C:\n"""\n\n\nclass D: ...\n',
    "two texts at the edge": 'def f():\n    return """\nx = 1\n"""\n\n\n'
    'def g():\n    return """\nx = 2\n"""\n',
    "text of two quotes at the edge": "def f():\n    return '''\ndef g(): ...\n'''\n",
    "head closed at the edge": "def f(\n    a,\n) -> int:\n    return a\nb = 2\n",
    "comment at the edge": "class C:\n    a = 1\n# no end\n    b = 2\n",
    "other line ends": "class C:\r\n    a = 1\r\nb = 2\r\n",
    "no end of line": "class C: ...\ndef f(): ...",
}


@pytest.mark.parametrize("shape", SHAPES)
def test_parts_bind_what_the_whole_does(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_parts, "_SMALLEST", 0)
    text = SHAPES[shape]
    whole = bindings(ast.parse(text).body)
    found = Names.of(text)
    for name, candidates in whole.items():
        assert name in found
        said = [_told(one) for one in found.get(name)]
        assert said == [_told(one) for one in candidates], name
    for name in set(re.findall(r"\w+", text)) - whole.keys():
        assert name not in found
        assert list(found.get(name)) == []


def _told(bound: object) -> object:
    value = getattr(bound, "value", None)
    dumped = ast.dump(value) if isinstance(value, ast.AST) else value
    # What is inside a method has lines of its own.
    lines = [
        (one.lineno, one.end_lineno) for one in (value, *getattr(value, "body", ()))
        if isinstance(value, ast.ClassDef) and isinstance(one, ast.FunctionDef)
    ]  # fmt: skip
    return dumped, lines, getattr(bound, "fallback", None), getattr(bound, "typing_only", None)


def test_part_that_is_no_python_binds_nothing_and_breaks_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_parts, "_SMALLEST", 0)
    found = Names.of("def f():\n    return (\n\n\ndef g(): ...\n")
    assert list(found.get("f")) == []
    assert len(list(found.get("g"))) == 1


@pytest.mark.parametrize(
    "path",
    ["vllm/v1/core/kv_cache_utils.py", "vllm/config/speculative.py", "vllm/config/vllm.py"],
)
def test_large_files_of_a_release_bind_the_same_in_parts(path: str) -> None:
    text = installed().text(path)
    found, whole = Names.of(text), bindings(ast.parse(text).body)
    for name, candidates in whole.items():
        assert [_told(one) for one in found.get(name)] == [_told(one) for one in candidates]


def written(source: str) -> frozenset[str]:
    """What the function in a source returns."""
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.FunctionDef)
    return frozenset(text for value, point in Flow(node).returned() for text in at(value, point))


@pytest.mark.parametrize(
    ("body", "texts"),
    [
        ("y = x[0:2]\nreturn list(y)", {"arg1[:2]"}),
        ("y = x\ny = y + 1\nreturn y", {"(arg1 + 1)"}),
        ("y = x\ny += 1\nreturn y", {"(arg1 + 1)"}),
        ("a, b = x\nreturn b", {"arg1[1]"}),
        ("y = x.a\nif not y:\n    y = x.b\nreturn y", {"(arg1.a or arg1.b)"}),
        ("y = x.a\nif y:\n    y = x.b\nreturn y", {"(arg1.a and arg1.b)"}),
        ("if x:\n    y = 1\nelse:\n    y = 2\nreturn y", {"1", "2"}),
        ("if x:\n    return 1\nreturn 2", {"1", "2"}),
        ("return [i + 1 for i in x if i]", {"[(each0 + 1) for each0 in arg1 if each0]"}),
        ("return [j for j in x]", {"arg1"}),
        ('return getattr(x, "k", None)', {"arg1.k"}),
        ("y = x.a\ny.reverse()\nreturn y", {"_then(arg1.a, _done('reverse'))"}),
        ("y = x.a\ny[0] = 1\nreturn y", {"_then(arg1.a, _set(0, 1))"}),
        ("y = x.a\ndel y[0]\nreturn y", {"_then(arg1.a, _without(arg1.a[0]))"}),
        ("y = 0\nfor i in x:\n    y = y + i\nreturn y",
         {"0", "(0 + _each(arg1))", "(_carried + _each(arg1))"}),
        ("if (y := x.a):\n    return y\nreturn 0", {"arg1.a", "0"}),
        ("return x.to('cpu', non_blocking=True).contiguous()", {"arg1"}),
        ("return x.to(half)", {"arg1.to(half)"}),
    ],
)  # fmt: skip
def test_value_is_written_in_arguments_and_attributes(body: str, texts: set[str]) -> None:
    indented = "\n".join(f"    {line}" for line in body.splitlines())
    assert written(f"def f(self, x):\n{indented}\n") == texts


def test_pattern_takes_no_more_than_it_says() -> None:
    assert fits(["self.rows[:n]"], "self.rows[:ANY]")
    assert fits(["self.rows[:f(a)[1]]"], "self.rows[:ANY]")
    assert not fits(["self.rows[:n][::-1]"], "self.rows[:ANY]")
    assert not fits(["self.rows[1:n]"], "self.rows[:ANY]")
    assert not fits([], "ANY")
    assert not fits(["1", "2"], "1")
    assert not fits(["1"], "1", needs="2")
