"""The model runner as probes follow a row through it: which method, what it keeps, who proposes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from harness.seams._bindings import last_name
from harness.seams._classes import Class, Classes
from harness.seams._fields import fields_of
from harness.seams._flow import Point
from harness.seams._forms import at, bound, fits, forms, keyword
from harness.seams._reading import flow, methods_with, through

SPECULATIVE: Final = "vllm.config.speculative"
RUNNER: Final = ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner")
PROPOSER: Final = ("vllm.v1.spec_decode.extract_hidden_states", "ExtractHiddenStatesProposer")
KEPT: Final = "self.execute_model_state"
_STATE = "ExecuteModelState"
_PLACES = 32
"""Most values that the kept state may have."""


def compared(node: ast.expr) -> str:
    """Return the name that ``....method == "name"`` asks for; "" for another test."""
    if not isinstance(node, ast.Compare) or last_name(node.left) != "method":
        return ""
    other = node.comparators[0]
    same = len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq)
    return str(other.value) if same and isinstance(other, ast.Constant) else ""


def way_to(point: Point) -> str | None:
    """Return the method for which a point is reached; "": the one that the configuration says."""
    asked = [guard.test for guard in point.guards if guard.holds]
    for test in reversed(asked):
        if compared(test):
            return compared(test)
        if isinstance(test, ast.Call) and last_name(test) == "uses_extract_hidden_states":
            return ""
    return None


def asked_for(classes: Classes) -> str:
    """Return the name that ``uses_extract_hidden_states`` asks for; "" where it is not clear."""
    asked = flow(classes, SPECULATIVE, "SpeculativeConfig.uses_extract_hidden_states")
    named = [compared(value) for value, _ in asked.returned()] if asked else []
    return named[0] if len(named) == 1 else ""


def proposals(classes: Classes) -> Iterator[tuple[ast.Call, Point]]:
    """Yield the calls of ``propose`` that are made for this method."""
    name = asked_for(classes)
    found = flow(classes, RUNNER[0], f"{RUNNER[1]}.propose_draft_token_ids")
    for call, point in found.calls("propose") if found and name else ():
        if way_to(point) in ("", name):
            yield call, point


def kept_at(classes: Classes, runner: Class, number: int) -> int | None:
    """Return the place in the kept state from which every caller takes that argument."""
    target = flow(classes, runner.module, f"{runner.name}.propose_draft_token_ids")
    callers = methods_with(classes, runner, "self.propose_draft_token_ids(")
    found = {
        frozenset(at(bound(call, target.node, number), point))
        for node in callers
        for call, point in through(classes, node).calls("propose_draft_token_ids")
        if target is not None and isinstance(call.func, ast.Attribute)
    }
    texts = found.pop() if len(found) == 1 else frozenset()
    places = [n for n in range(_PLACES) if fits(texts, *kept_as(classes, n))]
    return places[0] if places else None


def kept_as(classes: Classes, place: int) -> tuple[str, ...]:
    """Return how the kept state's value at a place is written: by number, and by name."""
    names = _kept_names(classes)
    by_name = (f"{KEPT}.{names[place]}",) if place < len(names) else ()
    return (f"{KEPT}[{place}]", *by_name)


def _kept_names(classes: Classes) -> list[str]:
    state = classes.find(RUNNER[0], _STATE)
    return [one.name for one in fields_of(classes, state)] if state is not None else []


def put_at(classes: Classes, runner: Class, place: int) -> frozenset[str]:
    """Return what ``execute_model`` keeps at a place of its state."""
    ran = flow(classes, runner.module, f"{runner.name}.execute_model")
    texts: frozenset[str] = frozenset()
    names = _kept_names(classes)
    for call, point in ran.calls(_STATE) if ran else ():
        by_name = keyword(call, names[place]) if place < len(names) else None
        given = call.args[place] if place < len(call.args) else by_name
        if given is None:
            return frozenset()
        texts |= at(given, point)
    return texts


def only_asked(point: Point, *words: str) -> bool:
    """Whether every test on the way to a point asks for one of these words, and nothing else."""
    return all(
        any(word in text for word in words)
        for guard in point.guards
        for text in forms(guard.test, guard.env)
    )
