"""Integer arithmetic of a kernel, done on a small example: its meaning, whatever its spelling."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness.seams._bindings import last_name
from harness.seams._flow import Env, Point, Value


class NotRead(Exception):
    """Code of another shape than plain arithmetic over loads and stores."""


@dataclass(frozen=True)
class Pointer:
    """A place in one of the kernel's arrays."""

    array: str
    place: int = 0


Number = int | Pointer
Inputs = Mapping[str, Number]

_DONE: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b, ast.Mod: lambda a, b: a % b,
    ast.BitAnd: lambda a, b: a & b, ast.BitOr: lambda a, b: a | b,
}  # fmt: skip
_HELD: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: lambda a, b: a == b, ast.NotEq: lambda a, b: a != b, ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b, ast.Gt: lambda a, b: a > b, ast.GtE: lambda a, b: a >= b,
}  # fmt: skip


@dataclass
class Example:
    """One program of a kernel and one token of it, alone in its block of lanes.

    Attributes:
        inputs: Argument (``arg1``, ...) -> its value.
        arrays: Array -> what lies in it.
        program: Number of the program.
        programs: How many there are.
        turn: Which turn of a loop is looked at; a loop's step is one.
    """

    inputs: Inputs
    arrays: Mapping[str, list[int]]
    program: int
    programs: int
    turn: int = 0

    def reached(self, point: Point) -> bool:
        """Whether the tests on the way to a point come out so that it is reached.

        Raises:
            NotRead: A test of another shape.
        """
        return all(bool(self.value(guard.test, guard.env)) == guard.holds for guard in point.guards)

    def value(self, node: ast.expr, env: Env) -> Number:
        """Return what an expression is.

        Raises:
            NotRead: An expression of another shape.
        """
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return int(node.value)
        if isinstance(node, ast.Name):
            return self._named(node.id, env)
        if isinstance(node, ast.BinOp):
            return self._sum(node, env)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            held = _HELD.get(type(node.ops[0]))
            if held is not None:
                return int(held(self.number(node.left, env), self.number(node.comparators[0], env)))
        if isinstance(node, ast.Call):
            return self._call(node, env)
        raise NotRead

    def number(self, node: ast.expr, env: Env) -> int:
        """Return an expression that is a number.

        Raises:
            NotRead: It is none.
        """
        found = self.value(node, env)
        if isinstance(found, Pointer):
            raise NotRead
        return found

    def _named(self, name: str, env: Env) -> Number:
        if name in env:
            if len(env[name]) != 1:
                raise NotRead
            one: Value = env[name][0]
            return self.value(one.node, one.env)
        if name in self.inputs:
            return self.inputs[name]
        raise NotRead

    def _sum(self, node: ast.BinOp, env: Env) -> Number:
        left, right = self.value(node.left, env), self.value(node.right, env)
        if isinstance(left, Pointer) and isinstance(right, int) and isinstance(node.op, ast.Add):
            return Pointer(left.array, left.place + right)
        done = _DONE.get(type(node.op))
        if (
            done is None
            or isinstance(left, Pointer)
            or isinstance(right, Pointer)
            or (not right and isinstance(node.op, ast.FloorDiv | ast.Mod))
        ):
            raise NotRead
        return done(left, right)

    def _call(self, node: ast.Call, env: Env) -> Number:
        name, args = last_name(node), node.args
        if name == "to" and isinstance(node.func, ast.Attribute):
            return self.value(node.func.value, env)
        if name == "load" and args:
            return self._load(args[0], env)
        if name == "where" and len(args) == 3:
            return self.value(args[1] if self.number(args[0], env) else args[2], env)
        if name == "program_id":
            return self.program
        if name == "num_programs":
            return self.programs
        if name == "arange":
            return self.number(args[0], env)
        if name == "_each" and isinstance(args[0], ast.Call) and last_name(args[0]) == "range":
            return self.number(args[0].args[0], env) + self.turn
        raise NotRead

    def _load(self, place: ast.expr, env: Env) -> int:
        found = self.value(place, env)
        if not isinstance(found, Pointer) or not 0 <= found.place < len(self.arrays[found.array]):
            raise NotRead
        return self.arrays[found.array][found.place]
