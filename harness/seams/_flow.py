"""What a value is made of when a statement is reached, as a text that local names do not change.

A function is gone through once, statement by statement. Each name is known by the expressions
that may have given it, so that what reaches a call, a store or a ``return`` can be written out in
arguments, attributes and constants alone (``_forms``). Where two branches meet, a name has the
values of both; a value that a loop carries round, or that was changed in place, says so, and fits
no pattern by chance.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from harness.seams._bindings import Function
from harness.seams._later import may_hold
from harness.seams._walk import CHILDREN, LEAVES, statements, walk

ENDS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_HARMLESS = frozenset({"wait_event", "wait_stream", "record", "record_stream", "synchronize"})

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

Env = dict[str, tuple["Value", ...]]


# Not frozen: thousands are made for a release, and freezing triples the time of each.
@dataclass(eq=False, slots=True)
class Value:
    """An expression and the names as they were when it was evaluated.

    Attributes:
        node: The expression.
        env: The names.
        texts: How ``_forms`` wrote it out.
    """

    node: ast.expr
    env: Env = field(repr=False)
    texts: tuple[str, ...] | None = None


@dataclass(eq=False, slots=True)
class Guard:
    """A test on the way to a statement, and how it came out."""

    test: ast.expr
    holds: bool
    env: Env = field(repr=False)


@dataclass(eq=False, slots=True)
class Point:
    """A statement with what is known when it is reached.

    Attributes:
        node: The statement, or an expression that a ``with``, an ``if`` or a loop evaluates.
        env: Names and what may have given them.
        guards: Tests that led here, outermost first.
        inner: Whether it stands in a function inside the function.
    """

    node: ast.stmt | ast.expr
    env: Env = field(repr=False)
    guards: tuple[Guard, ...] = ()
    inner: bool = False


@dataclass
class Flow:
    """A function, gone through.

    Arguments are ``arg1``, ``arg2``, ... in their order, ``self`` and ``cls`` not counted; those
    of a function inside it ``_arg1``, ``_arg2``, ...
    """

    node: Function
    points: list[Point] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Go through the function."""
        binds = may_hold(self.node, ":=") and any(
            isinstance(part, ast.NamedExpr) for part in walk(self.node)
        )
        _Walker(self.points, binds).block(self.node.body, _arguments(self.node), ())

    @cached_property
    def _calls(self) -> dict[str, list[tuple[ast.Call, Point]]]:
        found: dict[str, list[tuple[ast.Call, Point]]] = {}
        for point in self.points:
            for call, env in _calls_in(point.node, point.env):
                at = point if env is point.env else replace(point, env=env)
                found.setdefault(_called(call), []).append((call, at))
        return found

    def calls(self, name: str) -> Iterator[tuple[ast.Call, Point]]:
        """Yield each call of that name with the point at which it stands."""
        if may_hold(self.node, name):
            yield from self._calls.get(name, ())

    def every_call(self) -> Iterator[tuple[str, ast.Call, Point]]:
        """Yield the name of each call, the call, and the point at which it stands."""
        for name, calls in self._calls.items():
            yield from ((name, call, point) for call, point in calls)

    def returned(self, *, inner: bool = False) -> Iterator[tuple[ast.expr, Point]]:
        """Yield what the function itself returns, or what those inside it return."""
        for point in self.points:
            node = point.node
            if isinstance(node, ast.Return) and node.value is not None and point.inner is inner:
                yield node.value, point

    def stored(self, attribute: str) -> Iterator[tuple[ast.expr, ast.expr, Point]]:
        """Yield target and value of each store into ``self.ATTRIBUTE``, or a part of it."""
        for point in self.points:
            for target, value in _stores(point.node):
                inner = target
                while isinstance(inner, ast.Subscript):
                    inner = inner.value
                if isinstance(inner, ast.Attribute) and inner.attr == attribute:
                    yield target, value, point


def _arguments(node: Function) -> Env:
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    if every and every[0].arg in ("self", "cls"):
        every = every[1:]
    return {one.arg: (Value(_name(f"arg{n}"), {}),) for n, one in enumerate(every, start=1)}


def _calls_in(node: ast.AST, env: Env) -> Iterator[tuple[ast.Call, Env]]:
    """Yield calls with the names that they see; most of a tree is names, which are passed over."""
    stack = [node]
    while stack:
        part = stack.pop()
        if isinstance(part, ast.Call):
            yield part, env
        if isinstance(part, _COMPREHENSIONS) and part is not node:
            yield from _calls_in(part, _each_of(part.generators, env))
            continue
        for name in CHILDREN[type(part)]:
            value = getattr(part, name, None)
            if isinstance(value, list):
                stack += [one for one in value if isinstance(one, ast.AST)]
            elif isinstance(value, ast.AST) and type(value) not in LEAVES:
                stack.append(value)


def _each_of(loops: list[ast.comprehension], env: Env) -> Env:
    for loop in loops:
        env = _bind(env, loop.target, _make("_each", loop.iter))
    return env


def _called(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _stores(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield target, node.value
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        call = node.value
        if isinstance(call.func, ast.Attribute) and call.func.attr == "copy_" and call.args:
            yield call.func.value, call.args[0]


@dataclass
class _Walker:
    points: list[Point]
    binds: bool
    inner: bool = False

    def block(
        self, body: list[ast.stmt], env: Env, guards: tuple[Guard, ...]
    ) -> tuple[Env | None, tuple[Guard, ...]]:
        """Go through statements; None for the names where the end is not reached."""
        now: Env | None = env
        for node in body:
            if now is None:
                break
            now, guards = self._statement(node, now, guards)
        return now, guards

    def _statement(
        self, node: ast.stmt, env: Env, guards: tuple[Guard, ...]
    ) -> tuple[Env | None, tuple[Guard, ...]]:
        if isinstance(node, ast.If):
            return self._if(node, env, guards)
        if isinstance(node, ast.For | ast.AsyncFor | ast.While):
            return self._loop(node, env, guards), guards
        if isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                self._point(item.context_expr, env, guards)
                if item.optional_vars is not None:
                    env = _bind(env, item.optional_vars, _make("_with", item.context_expr))
            return self.block(node.body, env, guards)
        if isinstance(node, ast.Try):
            return self._try(node, env, guards), guards
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = _Walker(self.points, self.binds, inner=True)
            inside.block(node.body, env | _named(node), guards)
            return env, guards
        self._point(node, env, guards)
        if isinstance(node, ENDS):
            return None, guards
        return _assign(node, self._bound(node, env)), guards

    def _bound(self, node: ast.AST, env: Env) -> Env:
        """Return the names after the ``(name := value)`` in a statement or a test."""
        for part in walk(node) if self.binds else ():
            if isinstance(part, ast.NamedExpr):
                env = _bind(env, part.target, part.value)
        return env

    def _point(self, node: ast.stmt | ast.expr, env: Env, guards: tuple[Guard, ...]) -> None:
        self.points.append(Point(node, env, guards, self.inner))

    def _if(
        self, node: ast.If, env: Env, guards: tuple[Guard, ...]
    ) -> tuple[Env | None, tuple[Guard, ...]]:
        self._point(node.test, env, guards)
        env = self._bound(node.test, env)
        if isinstance(node.test, ast.Constant):
            return self.block(node.body if node.test.value else node.orelse, env, guards)
        yes, no = Guard(node.test, True, env), Guard(node.test, False, env)
        then, _ = self.block(node.body, env, (*guards, yes))
        other, _ = self.block(node.orelse, env, (*guards, no))
        if then is None:
            return other, (*guards, no)
        if other is None:
            return then, (*guards, yes)
        return _meet(node.test, env, then, other), guards

    def _loop(
        self, node: ast.For | ast.AsyncFor | ast.While, env: Env, guards: tuple[Guard, ...]
    ) -> Env:
        carried = {name: env[name] for name in _assigned(node.body) if name in env}
        inside = env | {name: (*old, _opaque("_carried")) for name, old in carried.items()}
        if isinstance(node, ast.While):
            self._point(node.test, env, guards)
            inside = self._bound(node.test, inside)
        else:
            self._point(node.iter, env, guards)
            inside = _bind(inside, node.target, _make("_each", node.iter))
        after, _ = self.block(node.body, inside, guards)
        left = _union(env, after or {})
        last, _ = self.block(node.orelse, left, guards)
        return last or left

    def _try(self, node: ast.Try, env: Env, guards: tuple[Guard, ...]) -> Env | None:
        done, _ = self.block([*node.body, *node.orelse], env, guards)
        ends = [done, *(self.block(one.body, env, guards)[0] for one in node.handlers)]
        left = [one for one in ends if one is not None]
        if not left:
            return self.block(node.finalbody, env, guards)[0] and None
        merged = left[0]
        for one in left[1:]:
            merged = _union(merged, one)
        return self.block(node.finalbody, merged, guards)[0]


def _named(node: Function) -> Env:
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return {one.arg: (_opaque(f"_arg{n}"),) for n, one in enumerate(every, start=1)}


def _name(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _opaque(name: str) -> Value:
    return Value(_name(name), {})


def _make(function: str, *args: ast.expr) -> ast.expr:
    return ast.Call(_name(function), list(args), [])


def _assign(node: ast.stmt, env: Env) -> Env:
    """Return the names after a statement."""
    if isinstance(node, ast.Assign):
        before = env
        for target in node.targets:
            env = _bind(env, target, node.value, before)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        env = _bind(env, node.target, node.value)
    elif isinstance(node, ast.AugAssign):
        changed = ast.BinOp(_loaded(node.target), node.op, node.value)
        env = _bind(env, node.target, changed)
    elif isinstance(node, ast.Delete):
        for gone in node.targets:
            env = _changed(env, gone, _make("_without", gone))
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        env = _acted(env, node.value)
    return env


def _loaded(target: ast.expr) -> ast.expr:
    return _name(target.id) if isinstance(target, ast.Name) else target


def _bind(env: Env, target: ast.expr, value: ast.expr, at: Env | None = None) -> Env:
    """Give a target a value, evaluated with the names ``at`` that moment."""
    at = env if at is None else at
    if isinstance(target, ast.Name):
        return env | {target.id: (Value(value, at),)}
    if isinstance(target, ast.Tuple | ast.List):
        same = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts)
        for n, part in enumerate(target.elts):
            one = (
                value.elts[n]
                if same and isinstance(value, ast.Tuple | ast.List)
                else ast.Subscript(value, ast.Constant(n), ast.Load())
            )
            env = _bind(env, part, one, at)
        return env
    if isinstance(target, ast.Subscript):
        return _changed(env, target, _make("_set", target.slice, value))
    return env


def _acted(env: Env, call: ast.Call) -> Env:
    """Return the names after a call whose result is dropped: its receiver may have changed."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr in _HARMLESS:
        return env
    receiver = call.func.value
    if call.func.attr == "copy_" and call.args:
        if isinstance(receiver, ast.Name):
            return _bind(env, receiver, call.args[0]) if receiver.id in env else env
        if isinstance(receiver, ast.Subscript):
            return _bind(env, receiver, call.args[0])
    # The place in a receiver tells what changed; a whole one would be written twice a call.
    whole = isinstance(receiver, ast.Name)
    done: ast.expr = ast.Constant(call.func.attr) if whole else call.func
    return _changed(env, receiver, _make("_done", done, *call.args))


def _changed(env: Env, target: ast.expr, how: ast.expr) -> Env:
    """Say of the local name in a target that it was changed in place."""
    while isinstance(target, ast.Subscript):
        target = target.value
    if not isinstance(target, ast.Name) or target.id not in env:
        return env
    return env | {target.id: (Value(_make("_then", _loaded(target), how), env),)}


def _meet(test: ast.expr, before: Env, then: Env, other: Env) -> Env:
    """Join two branches; ``if x: ... else: x = y`` is ``x or y``, and the other way ``x and y``."""
    merged = _union(then, other)
    asked, holds = _asked(test)
    if asked and asked in before and (then[asked] is not other[asked]):
        old = before[asked]
        kept, new = (then, other) if holds else (other, then)
        if kept[asked] is old:
            return merged | {asked: _joined(ast.Or(), old, new[asked])}
        if new[asked] is old:
            return merged | {asked: _joined(ast.And(), old, kept[asked])}
    return merged


def _joined(how: ast.boolop, old: tuple[Value, ...], new: tuple[Value, ...]) -> tuple[Value, ...]:
    env: Env = {"_old": old, "_new": new}
    parts: list[ast.expr] = [_name("_old"), _name("_new")]
    return (Value(ast.BoolOp(how, parts), env),)


def _asked(test: ast.expr) -> tuple[str, bool]:
    """Return the name that a test asks for its truth, and the outcome where it has any."""
    if isinstance(test, ast.Name):
        return test.id, True
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        name, holds = _asked(test.operand)
        return name, not holds
    if isinstance(test, ast.Compare) and isinstance(test.left, ast.Name):
        against = test.comparators[0]
        if isinstance(against, ast.Constant) and against.value is None:
            if isinstance(test.ops[0], ast.Is):
                return test.left.id, False
            if isinstance(test.ops[0], ast.IsNot):
                return test.left.id, True
    return "", True


def _union(one: Env, other: Env) -> Env:
    merged = dict(one)
    for name, values in other.items():
        mine = merged.get(name)
        if mine is None:
            merged[name] = values
        elif mine is not values:
            merged[name] = (*mine, *(value for value in values if value not in mine))
    return merged


def _assigned(body: list[ast.stmt]) -> Iterator[str]:
    for node in statements(body, inner=False):
        for part in walk(node):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                yield part.id
