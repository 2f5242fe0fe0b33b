"""Probes of the rows between model and drafter: for which method, which of them, how put together.

What they read is on the way of every sample of vLLM's own capture, and a mistake there gives
plausible, wrong rows. Only code whose every value is one of the known forms is told by name.
"""

from __future__ import annotations

import ast

from harness.seams._captured import handed_on, kept_apart, run_again, stored, used_inside
from harness.seams._classes import Class, Classes
from harness.seams._flow import Flow
from harness.seams._forms import argument_in, at, bound, fits, forms, keyword
from harness.seams._in_place import unchanged
from harness.seams._reading import ABSENT, UNKNOWN, flow
from harness.seams._runner import (
    KEPT,
    PROPOSER,
    RUNNER,
    SPECULATIVE,
    asked_for,
    kept_as,
    kept_at,
    only_asked,
    proposals,
    put_at,
    way_to,
)


def method_name(classes: Classes) -> str:
    """The method by which configuration, runner and drafter know the capture."""
    runner = classes.find(*RUNNER)
    if classes.find(*PROPOSER) is None or runner is None:
        return ABSENT
    name = asked_for(classes)
    places = (
        flow(classes, SPECULATIVE, "SpeculativeConfig.__post_init__"),
        flow(classes, RUNNER[0], f"{RUNNER[1]}.__init__"),
        flow(classes, RUNNER[0], f"{RUNNER[1]}.propose_draft_token_ids"),
    )
    made = ("ExtractHiddenStatesConfig", PROPOSER[1], "propose")
    for found, what in zip(places, made, strict=True):
        ways = [way_to(point) for _, point in found.calls(what)] if found else []
        if not any(way in ("", name) for way in ways):
            return UNKNOWN
    return name or UNKNOWN


def cut(classes: Classes) -> str:
    """Which rows the drafter is handed: ``scheduled, each depth in order``, or ``unknown``."""
    runner, took = classes.find(*RUNNER), flow(classes, PROPOSER[0], f"{PROPOSER[1]}.propose")
    if took is None or runner is None:
        return ABSENT if classes.find(*PROPOSER) is None else UNKNOWN
    number = _stacked(took)
    calls = list(proposals(classes))
    if number is None or not calls:
        return UNKNOWN
    for call, point in calls:
        given = at(bound(call, took.node, number), point)
        rows = "[each0[:arg1.total_num_scheduled_tokens] for each0 in ARG]"
        source = argument_in(given, rows)
        always = only_asked(point, "self.speculative_config", "use_aux_hidden_state_outputs")
        if source is None or not always or not _comes_from_model(classes, runner, source):
            return UNKNOWN
        through = flow(classes, RUNNER[0], f"{RUNNER[1]}.propose_draft_token_ids")
        if through is None or not unchanged(through, f"arg{source}", by=["propose"], own=False):
            return UNKNOWN
    return "scheduled, each depth in order"


def stacked(classes: Classes) -> str:
    """How rows of all depths are put together: ``token, depth, hidden``, or ``unknown``."""
    took = flow(classes, PROPOSER[0], f"{PROPOSER[1]}.propose")
    if took is None:
        return ABSENT if classes.find(*PROPOSER) is None else UNKNOWN
    number = _stacked(took)
    ran = [(call, point) for call, point in took.calls("model")]
    told = [at(keyword(call, "hidden_states"), point) for call, point in ran if not point.guards]
    whole = len(told) == len(ran) and all(fits(one, "self.hidden_states[:ANY]") for one in told)
    right = number is not None and bool(told) and whole and _typed(classes)
    return "token, depth, hidden" if right else UNKNOWN


def _typed(classes: Classes) -> bool:
    """Whether the drafter's buffer has the type of the model."""
    made = flow(classes, PROPOSER[0], f"{PROPOSER[1]}.__init__")
    if made is None:
        return False
    own = frozenset(text for _, value, p in made.stored("dtype") for text in at(value, p))
    types = [
        at(keyword(value, "dtype"), p) if isinstance(value, ast.Call) else ()
        for _, value, p in made.stored("hidden_states")
    ]
    kept = fits(own, _TYPE)
    return bool(types) and all(
        fits(one, _TYPE) or (kept and fits(one, "self.dtype")) for one in types
    )


_TYPE = "arg1.model_config.dtype"


def when(classes: Classes) -> str:
    """At which steps rows are handed on: ``all that fit`` the drafter's length, or ``unknown``."""
    runner = classes.find(*RUNNER)
    found = flow(classes, RUNNER[0], f"{RUNNER[1]}.sample_tokens")
    if classes.find(*PROPOSER) is None or runner is None:
        return ABSENT
    config, own = "self.speculative_config", "uses_extract_hidden_states()"
    ours = [
        [(text, guard.holds) for guard in point.guards for text in forms(guard.test, guard.env)]
        for call, point in (found.calls("propose_draft_token_ids") if found else ())
        if isinstance(call.func, ast.Name)
        and any(g.holds and own in t for g in point.guards for t in forms(g.test, g.env))
    ]
    ways = f"{config}.use_eagle() or {config}.uses_draft_model() or {config}.{own}"
    expected = (
        (f"{KEPT} is None", False),
        (f"{config} is not None", True),
        (f"({ways}) and not {config}.disable_padded_drafter_batch", True),
    )
    length = f"max_seq_len + self.num_spec_tokens <= {_LENGTH}"
    told = [f"{one} is not None and {one}.{length}" for one in _PLAN]
    asked = [f"self._input_fits_in_drafter({one})" for one in _PLAN]
    if len(ours) != 1:
        return UNKNOWN
    if any(_same(ours[0], [*expected, (one, True)]) for one in told):
        return "all that fit"
    by_method = any(_same(ours[0], [*expected, (one, True)]) for one in asked)
    return "all that fit" if by_method and _fits_by_length(classes) else UNKNOWN


_PLAN = (f"{KEPT}[ANY]", f"{KEPT}.ANY")
_LENGTH = "self.effective_drafter_max_model_len"


def _same(found: list[tuple[str, bool]], known: list[tuple[str, bool]]) -> bool:
    return len(found) == len(known) and all(
        holds is wanted and fits([text], form)
        for (text, holds), (form, wanted) in zip(found, known, strict=True)
    )


def _fits_by_length(classes: Classes) -> bool:
    asked = flow(classes, RUNNER[0], f"{RUNNER[1]}._input_fits_in_drafter")
    texts = frozenset(t for value, p in asked.returned() for t in at(value, p)) if asked else ()
    room = f"arg1.max_seq_len + (self.num_spec_tokens + {{}}) <= {_LENGTH}"
    return fits(texts, "False", room.format(1), needs=room.format(0))


_OWN = ("_determine_batch_execution_and_padding", "_get_slot_mapping", "model")
_STEPS = (*_OWN, "set_forward_context")
"""What ``propose`` calls between filling the buffer and handing it on."""


def _stacked(took: Flow) -> int | None:
    """Return the argument that ``propose`` stacks by depth into the drafter's buffer."""
    rows = "torch.stack(ARG, dim=1)"
    stores = list(took.stored("hidden_states"))
    numbers = {argument_in(at(value, point), rows) for _, value, point in stores}
    here = "self.hidden_states[:torch.stack(ANY, dim=1).shape[0]]"
    whole = all(fits(at(t, point), here) and not point.guards for t, _, point in stores)
    number = numbers.pop() if whole and len(numbers) == 1 else None
    if number is None:
        return None
    kept = unchanged(took, "self.hidden_states", f"arg{number}", by=_STEPS)
    return number if kept else None


def _comes_from_model(classes: Classes, runner: Class, number: int) -> bool:
    """Whether that argument of ``propose_draft_token_ids`` is what the model captured."""
    place = kept_at(classes, runner, number)
    if place is None:
        return False
    first = kept_at(classes, runner, 1)
    given = put_at(classes, runner, place)
    captured = [text for text in given if text != "None"]
    ran = ("self._model_forward(ANY)[1]", "self.model(ANY)[1]")
    plan = () if first is None else put_at(classes, runner, first)
    same = fits(plan, "arg1", "replace(arg1, ANY)")
    whole = bool(captured) and fits(captured, *ran) and _left_alone(classes, runner, place)
    return same and whole and _runs_model(classes, runner)


def _left_alone(classes: Classes, runner: Class, place: int) -> bool:
    """Whether what the model captured is not changed on its way through the runner."""
    ran = flow(classes, runner.module, f"{runner.name}.execute_model")
    sampled = flow(classes, runner.module, f"{runner.name}.sample_tokens")
    kept = kept_as(classes, place)
    return (
        ran is not None
        and sampled is not None
        and unchanged(ran, "self._model_forward", by=["send_tensor_dict"], own=False, asked=False)
        and unchanged(sampled, *kept, by=["propose_draft_token_ids"], own=False)
        and not (handed_on(ran) or used_inside(ran) or stored(sampled, *kept))
        and kept_apart(classes, runner)
        and not run_again(classes, runner, sampled)
    )


def _runs_model(classes: Classes, runner: Class) -> bool:
    ran = flow(classes, runner.module, f"{runner.name}._model_forward")
    return ran is not None and all(
        fits(at(value, point), "self.model(ANY)") for value, point in ran.returned()
    )


PROBES = {
    "native.method": method_name,
    "native.rows.when": when,
    "native.rows.cut": cut,
    "native.rows.axes": stacked,
}
