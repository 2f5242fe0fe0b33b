"""What a model's own ``forward`` captures, read from the branches that capture it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from harness.seams._bindings import Function, last_name
from harness.seams._walk import statements, walk

UNKNOWN = "unknown"
_WANTED = "aux_hidden_state_layers"
_STATE = frozenset({"hidden_states", "residual"})


def captured_by_branches(node: Function) -> str:
    """Return ``inner``, ``inner, final`` or ``unknown``.

    Args:
        node: A ``forward`` that asks which layers are wanted.

    Returns:
        ``unknown`` unless every place that asks is ``idx in self.aux_hidden_state_layers`` in
        the loop over the layers, or ``self.end_layer in ...`` between loop and final norm, takes
        ``hidden_states + residual``, and the list is returned as it was filled.
    """
    parts = tuple(walk(node))
    asked = sum(map(_is_wanted, parts))
    loops = [
        n
        for n, loop in enumerate(node.body)
        if isinstance(loop, ast.For) and any(_captures(one, _counter(loop)) for one in loop.body)
    ]
    final = [n for n, one in enumerate(node.body) if _captures(one, "end_layer")]
    if len(loops) != 1 or len(loops) + len(final) != asked:
        return UNKNOWN
    if not _as_filled(parts) or not _left_alone(parts):
        return UNKNOWN
    if not final:
        return "inner"
    between = node.body[loops[0] + 1 : final[0]]
    after = final[0] > loops[0] and not any(_norms(one) for one in between)
    return "inner, final" if after else UNKNOWN


def hands_on(node: Function, argument: str) -> bool:
    """Whether a setter only stores its argument, or passes it, as it came."""
    uses = sum(isinstance(part, ast.Name) and part.id == argument for part in walk(node))
    return uses == sum(_is_name(value, argument) for value in _given(node)) > 0


def _given(node: ast.AST) -> Iterator[ast.expr]:
    for part in walk(node):
        if isinstance(part, ast.Assign) and all(_is_wanted(one) for one in part.targets):
            yield part.value
        elif isinstance(part, ast.Call) and last_name(part.func).endswith(f"set_{_WANTED}"):
            yield from part.args


def _is_wanted(part: ast.AST) -> bool:
    return isinstance(part, ast.Name | ast.Attribute) and last_name(part) == _WANTED


def _is_name(part: ast.AST, name: str) -> bool:
    return isinstance(part, ast.Name) and part.id == name


def _counter(loop: ast.For) -> str:
    """Return the name of a loop's depth; "" where it is not counted from ``start_layer``."""
    made, target = loop.iter, loop.target
    if not isinstance(made, ast.Call) or last_name(made.func) != "enumerate":
        return ""
    starts = [*made.args[1:], *(word.value for word in made.keywords if word.arg == "start")]
    if [last_name(start) for start in starts] != ["start_layer"]:
        return ""
    first = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
    return first.id if isinstance(first, ast.Name) else ""


def _captures(part: ast.stmt, depth: str) -> bool:
    """Whether a statement takes the state of this depth where it is wanted."""
    if not isinstance(part, ast.If) or part.orelse or not isinstance(part.test, ast.Compare):
        return False
    test = part.test
    if not isinstance(test.left, ast.Name | ast.Attribute) or last_name(test.left) != depth:
        return False
    if len(test.ops) != 1 or not isinstance(test.ops[0], ast.In):
        return False
    return _is_wanted(test.comparators[0]) and _takes_state(part.body)


def _takes_state(body: list[ast.stmt]) -> bool:
    """Whether all that is appended is ``hidden_states + residual``, of all tokens."""
    parts = [part for one in body for part in walk(one)]
    taken = [
        part.args[0]
        for part in parts
        if isinstance(part, ast.Call) and last_name(part.func) == "append" and part.args
    ]
    if len(taken) != 1:
        return False
    if not isinstance(taken[0], ast.Name):
        return _is_state(taken[0])
    name = taken[0].id
    made = [
        part.value
        for part in statements(body)
        if isinstance(part, ast.Assign) and any(_is_name(target, name) for target in part.targets)
    ]
    return bool(made) and _is_state(made[0]) and all(_is_gathered(one, name) for one in made[1:])


def _is_state(value: ast.expr) -> bool:
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
        return False
    return {part.id for part in (value.left, value.right) if isinstance(part, ast.Name)} == _STATE


def _is_gathered(value: ast.expr, name: str) -> bool:
    """Whether a value is the same state: gathered from all ranks, or its padding cut off."""
    if isinstance(value, ast.Call):
        gathers = last_name(value.func).endswith("all_gather")
        return gathers and bool(value.args) and _is_name(value.args[0], name)
    if not isinstance(value, ast.Subscript) or not isinstance(value.slice, ast.Slice):
        return False
    return _is_name(value.value, name) and value.slice.lower is None and value.slice.step is None


def _norms(part: ast.stmt) -> bool:
    return any(isinstance(one, ast.Call) and last_name(one.func) == "norm" for one in walk(part))


def _as_filled(parts: Sequence[ast.AST]) -> bool:
    """Whether the list that was filled is returned as it is, beside the last state."""
    filled = {
        last_name(part.func.value)
        for part in parts
        if isinstance(part, ast.Call)
        and isinstance(part.func, ast.Attribute)
        and part.func.attr == "append"
    }
    pairs = [
        part.value.elts[1]
        for part in parts
        if isinstance(part, ast.Return) and isinstance(part.value, ast.Tuple)
    ]
    return len(filled) == 1 and len(pairs) == 1 and _is_name(pairs[0], filled.pop())


def _left_alone(parts: Sequence[ast.AST]) -> bool:
    """Whether list and states are only filled, counted, gathered, cut and returned.

    In any other place a state may be changed where it lies, or the list put in another order.
    """
    names = {name for part in parts for name in _filled_by(part)}
    seen = {id(one) for part in parts for one in _known_uses(part)}
    used = (part for part in parts if isinstance(part, ast.Name) and part.id in names)
    return all(id(part) in seen for part in used)


def _filled_by(part: ast.AST) -> Iterator[str]:
    if not isinstance(part, ast.Call) or not isinstance(part.func, ast.Attribute):
        return
    if part.func.attr == "append":
        both = [part.func.value, *part.args]
        yield from (one.id for one in both if isinstance(one, ast.Name))


def _known_uses(part: ast.AST) -> Iterator[ast.expr]:
    """Yield what a part uses without changing it, filling a list apart."""
    if isinstance(part, ast.Call):
        name = last_name(part.func)
        kept = name == "len" or name.endswith("all_gather")
        yield from part.args if name == "append" else part.args[:1] if kept else ()
    elif isinstance(part, ast.Attribute) and part.attr in ("shape", "append"):
        yield part.value
    elif isinstance(part, ast.Return) and isinstance(part.value, ast.Tuple):
        yield from part.value.elts
    elif isinstance(part, ast.If | ast.IfExp):
        yield part.test
    elif isinstance(part, ast.AnnAssign):
        yield part.target
    elif isinstance(part, ast.Assign):
        yield from part.targets
        # Its own rows, by the same name: see ``_is_gathered``.
        if isinstance(part.value, ast.Subscript) and isinstance(part.value.value, ast.Name):
            same = part.value.value
            yield from (same for one in part.targets if _is_name(one, same.id))
