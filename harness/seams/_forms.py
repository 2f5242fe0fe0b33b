"""Values written out in one way, whoever wrote them, and held against known ones.

A text is made of arguments, attributes, calls and constants. What does not change a value is left
out (``tuple(x)``, ``x.clone()``, ``x.cpu()``, ``device=...``), and what can be said in two ways is
said in one (``getattr(x, "y", None)`` is ``x.y``; ``x[0:n]`` is ``x[:n]``).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import product
from math import prod
from typing import Any

from harness.seams._bindings import Function
from harness.seams._flow import Env, Point, Value

_MOST, _LONGEST = 64, 4000
_LOST = ("...",)
_SAME = frozenset({"clone", "contiguous", "detach", "cpu", "cuda"})
_WRAPS = frozenset({"tuple", "list"})
_PLACES = frozenset({"device", "non_blocking", "pin_memory"})
_SHAPING = frozenset({"reshape", "view", "permute", "expand"})
_COUNTED = "each"
_AND, _OR = " and ", " or "
_BRACKETS = dict.fromkeys("([{", 1) | dict.fromkeys(")]}", -1)
_STANDING = ("ANY", "ARG")
_ARGUMENT = re.compile(r"arg\d+")

Texts = tuple[str, ...]


def forms(node: ast.expr | None, env: Env) -> frozenset[str]:
    """Return the texts of a value, one for each way in which it may have come about."""
    return frozenset() if node is None else frozenset(_Writer().write(node, env))


def at(node: ast.expr | None, point: Point) -> frozenset[str]:
    """Return the texts of a value at a point."""
    return forms(node, point.env)


def fits(found: Iterable[str], *allowed: str, needs: str = "") -> bool:
    """Whether there are texts, each is allowed, and the one that must be there is.

    In a pattern ``ANY`` stands for anything that closes the brackets which it opens.
    """
    texts = frozenset(found)
    every = [*allowed, needs] if needs else list(allowed)
    if not texts or not all(any(_match(one, text) is not None for one in every) for text in texts):
        return False
    return not needs or any(_match(needs, text) is not None for text in texts)


def argument_in(found: Iterable[str], form: str) -> int | None:
    """Return the number of the argument that stands for ``ARG`` in the only text there is."""
    texts = list(found)
    match = _match(form, texts[0]) if len(texts) == 1 else None
    return int(match[0].removeprefix("arg")) if match else None


def _match(form: str, text: str) -> list[str] | None:
    """Return what ``ARG`` stands for, each time; None where the text is another."""
    parts = _parts(form)
    last = parts[-1]
    if last not in _STANDING and not text.endswith(last):
        return None
    return _rest(parts, text, 0)


@cache
def _parts(form: str) -> tuple[str, ...]:
    (written,) = _Writer().write(ast.parse(form, mode="eval").body, {})
    return tuple(part for part in re.split(r"(\bANY\b|\bARG\b)", written) if part)


def _rest(parts: tuple[str, ...], text: str, place: int) -> list[str] | None:
    if not parts:
        return [] if place == len(text) else None
    first, left = parts[0], parts[1:]
    if first == "ARG":
        found = _ARGUMENT.match(text, place)
        more = _rest(left, text, found.end()) if found else None
        return [found.group(), *more] if found and more is not None else None
    if first != "ANY":
        return _rest(left, text, place + len(first)) if text.startswith(first, place) else None
    follows = left[0] if left and left[0] not in _STANDING else ""
    open_ones = 0
    for end in range(place, len(text) + 1):
        here = not open_ones and text.startswith(follows, end)
        if here and (more := _rest(left, text, end)) is not None:
            return more
        open_ones += _BRACKETS.get(text[end : end + 1], 0)
        if open_ones < 0:
            break
    return None


def bound(call: ast.Call, callee: Function, number: int) -> ast.expr | None:
    """Return what a call passes as the callee's argument of that number; None where unknown."""
    every = [one.arg for one in [*callee.args.posonlyargs, *callee.args.args]]
    if every and every[0] in ("self", "cls"):
        every = every[1:]
    names = every + [one.arg for one in callee.args.kwonlyargs]
    if number > len(names) or any(isinstance(one, ast.Starred) for one in call.args):
        return None
    if number <= min(len(call.args), len(every)):
        return call.args[number - 1]
    return keyword(call, names[number - 1])


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """Return what a call passes by that name."""
    return next((one.value for one in call.keywords if one.arg == name), None)


class _Writer:
    """Writes expressions; each value that a name stands for is written once."""

    def __init__(self) -> None:
        self._known: dict[int, Texts] = {}
        self._depth = 0
        self._scopes: list[dict[str, str]] = []

    def write(self, node: ast.AST, env: Env) -> Texts:
        """Return the texts of an expression."""
        kind = type(node)
        if kind not in _WRITERS:
            _WRITERS[kind] = getattr(_Writer, f"_{kind.__name__.lower()}", _raw)
        return _few(_WRITERS[kind](self, node, env))

    def _name(self, node: ast.Name, env: Env) -> Texts:
        for scope in reversed(self._scopes):
            if node.id in scope:
                return (scope[node.id],)
        if node.id not in env:
            return (node.id,)
        values = env[node.id]
        if len(values) == 1:
            return self._value(values[0])
        return _few([text for value in values for text in self._value(value)])

    def _value(self, value: Value) -> Texts:
        if value.texts is not None:
            return value.texts
        key = id(value)
        if key not in self._known:
            self._known[key] = _LOST  # where a value is made of itself
            scopes, self._scopes = self._scopes, []
            self._known[key] = self.write(value.node, value.env)
            self._scopes = scopes
            if not self._depth:
                # In a loop of a list the names of inner loops are others.
                value.texts = self._known[key]
        return self._known[key]

    def _constant(self, node: ast.Constant, env: Env) -> Texts:
        return (repr(node.value),)

    def _attribute(self, node: ast.Attribute, env: Env) -> Texts:
        return tuple(f"{one}.{node.attr}" for one in self.write(node.value, env))

    def _subscript(self, node: ast.Subscript, env: Env) -> Texts:
        return self._each("{}[{}]", [node.value, node.slice], env)

    def _slice(self, node: ast.Slice, env: Env) -> Texts:
        low, step = node.lower, node.step
        low = None if isinstance(low, ast.Constant) and low.value in (0, None) else low
        step = None if isinstance(step, ast.Constant) and step.value in (1, None) else step
        given = [one for one in (low, node.upper, step) if one is not None]
        form = ("{}" if low else "") + ":" + ("{}" if node.upper else "")
        return self._each(form + (":{}" if step else ""), given, env)

    def _call(self, node: ast.Call, env: Env) -> Texts:
        function, args = node.func, list(node.args)
        keywords = [one for one in node.keywords if one.arg not in _PLACES]
        name = function.id if isinstance(function, ast.Name) else ""
        method = function.attr if isinstance(function, ast.Attribute) else ""
        if name in _WRAPS and len(args) == 1 and not keywords:
            return self.write(args[0], env)
        if name == "cast" and len(args) == 2:
            return self.write(args[1], env)
        if name == "getattr" and len(args) > 1 and isinstance(args[1], ast.Constant):
            named = str(args[1].value)
            return tuple(f"{one}.{named}" for one in self.write(args[0], env))
        same = (method in _SAME and not args) or (method == "to" and _is_place(args))
        if isinstance(function, ast.Attribute) and same and not keywords:
            return self.write(function.value, env)
        if method in _SHAPING and len(args) == 1 and isinstance(args[0], ast.Tuple):
            args = args[0].elts
        if method in ("stack", "cat") and not args:
            args = [one.value for one in keywords if one.arg == "tensors"]
            keywords = [one for one in keywords if one.arg != "tensors"]
        if method in ("stack", "cat") and len(args) == 2:
            keywords = [*keywords, ast.keyword("dim", args.pop())]
        ordered = sorted(keywords, key=lambda one: one.arg or "~")
        marks = ["{}"] * len(args) + [f"{one.arg}={{}}" if one.arg else "**{}" for one in ordered]
        given = [function, *args, *(one.value for one in ordered)]
        return self._each("{}(" + ", ".join(marks) + ")", given, env)

    def _binop(self, node: ast.BinOp, env: Env) -> Texts:
        mark = _OPERATORS.get(type(node.op), type(node.op).__name__)
        pairs = _ways([self.write(node.left, env), self.write(node.right, env)])
        if isinstance(node.op, ast.Mult):
            return tuple("(" + mark.join(sorted(pair)) + ")" for pair in pairs)
        return tuple("(" + mark.join(pair) + ")" for pair in pairs)

    def _unaryop(self, node: ast.UnaryOp, env: Env) -> Texts:
        if isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            return (f"-{node.operand.value!r}",)
        return self._each(f"{type(node.op).__name__}({{}})", [node.operand], env)

    def _boolop(self, node: ast.BoolOp, env: Env) -> Texts:
        mark = _AND if isinstance(node.op, ast.And) else _OR
        ways = _ways([self.write(one, env) for one in node.values])
        return tuple(_either(mark, list(dict.fromkeys(way))) for way in ways)

    def _compare(self, node: ast.Compare, env: Env) -> Texts:
        marks = "".join(f" {type(op).__name__} {{}}" for op in node.ops)
        return self._each("({}" + marks + ")", [node.left, *node.comparators], env)

    def _ifexp(self, node: ast.IfExp, env: Env) -> Texts:
        return (*self.write(node.body, env), *self.write(node.orelse, env))

    def _tuple(self, node: ast.Tuple, env: Env) -> Texts:
        return self._each("(" + ", ".join(["{}"] * len(node.elts)) + ")", node.elts, env)

    def _list(self, node: ast.List, env: Env) -> Texts:
        return self._each("[" + ", ".join(["{}"] * len(node.elts)) + "]", node.elts, env)

    def _starred(self, node: ast.Starred, env: Env) -> Texts:
        return self._each("*{}", [node.value], env)

    def _dict(self, node: ast.Dict, env: Env) -> Texts:
        pairs = list(zip(node.keys, node.values, strict=True))
        if all(isinstance(key, ast.Constant) for key in node.keys):
            pairs.sort(key=lambda pair: str(getattr(pair[0], "value", "")))
        marks = ["{}: {}" if key is not None else "**{}" for key, _ in pairs]
        given = [one for pair in pairs for one in pair if one is not None]
        return self._each("{{" + ", ".join(marks) + "}}", given, env)

    def _joinedstr(self, node: ast.JoinedStr, env: Env) -> Texts:
        marks = ["{}" if isinstance(one, ast.FormattedValue) else None for one in node.values]
        given = [one.value for one in node.values if isinstance(one, ast.FormattedValue)]
        text = "".join(
            mark or str(getattr(one, "value", "")).replace("{", "{{").replace("}", "}}")
            for mark, one in zip(marks, node.values, strict=True)
        )
        return tuple(f"f'{one}'" for one in self._each(text, given, env))

    def _listcomp(self, node: ast.ListComp, env: Env) -> Texts:
        return self._comprehension("[{}", [node.elt], node.generators, "]", env)

    def _generatorexp(self, node: ast.GeneratorExp, env: Env) -> Texts:
        return self._comprehension("[{}", [node.elt], node.generators, "]", env)

    def _dictcomp(self, node: ast.DictComp, env: Env) -> Texts:
        return self._comprehension("{{{}: {}", [node.key, node.value], node.generators, "}}", env)

    def _comprehension(
        self,
        form: str,
        elements: list[ast.expr],
        loops: list[ast.comprehension],
        end: str,
        env: Env,
    ) -> Texts:
        first = loops[0]
        same = (
            len(loops) == 1
            and not first.ifs
            and ast.dump(elements[0])
            == ast.dump(ast.Name(getattr(first.target, "id", ""), ctx=ast.Load()))
        )
        if same and len(elements) == 1:
            return self.write(first.iter, env)
        scope: dict[str, str] = {}
        over = []
        depth = self._depth
        for loop in loops:
            over.append(self.write(loop.iter, env))
            for part in ast.walk(loop.target):
                if isinstance(part, ast.Name):
                    scope[part.id] = f"{_COUNTED}{self._depth}"
                    self._depth += 1
            self._scopes.append(scope)
            form += " for {} in {}"
            form += "".join(" if {}" for _ in loop.ifs)
        bodies: list[Texts] = [self.write(one, env) for one in elements]
        for loop, texts in zip(loops, over, strict=True):
            bodies += [self.write(_load(loop.target), env), texts]
            bodies += [self.write(one, env) for one in loop.ifs]
        del self._scopes[len(self._scopes) - len(loops) :]
        self._depth = depth
        return tuple((form + end).format(*way) for way in _ways(bodies))

    def _each(self, form: str, parts: list[ast.expr], env: Env) -> Texts:
        return tuple(form.format(*way) for way in _ways([self.write(one, env) for one in parts]))


_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: " + ", ast.Sub: " - ", ast.Mult: " * ", ast.FloorDiv: " // ", ast.Mod: " % ",
    ast.Div: " / ", ast.BitAnd: " & ", ast.BitOr: " | ",
}  # fmt: skip


def _either(mark: str, parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else "(" + mark.join(parts) + ")"


def _ways(parts: list[Texts]) -> Iterable[Texts]:
    count = prod(map(len, parts))
    if count == 1:
        return (tuple([text for (text,) in parts]),)
    return product(*(one if count <= _MOST or len(one) == 1 else _LOST for one in parts))


def _few(texts: Sequence[str]) -> Texts:
    different = tuple(texts if len(texts) == 1 else dict.fromkeys(texts))
    if len(different) > _MOST:
        return _LOST
    for one in different:
        if len(one) > _LONGEST:
            return _LOST
    return different


def _load(target: ast.expr) -> ast.expr:
    if isinstance(target, ast.Tuple):
        return ast.Tuple([_load(one) for one in target.elts], ctx=ast.Load())
    return target


def _is_place(args: list[ast.expr]) -> bool:
    """Whether ``.to(...)`` names a device only."""
    return all(
        isinstance(one, ast.Constant)
        or (isinstance(one, ast.Attribute | ast.Name) and "device" in ast.unparse(one))
        for one in args
    )


def _raw(_: _Writer, node: ast.AST, env: Env) -> Texts:
    return (f"?{ast.unparse(node)}",)


_WRITERS: dict[type[ast.AST], Callable[[_Writer, Any, Env], Texts]] = {}
"""By kind of an expression the method that writes it, found at the first."""
