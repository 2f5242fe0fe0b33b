"""Probes of the way from the model to the drafter: which depths, which rows, in which slots.

What they read is on the way of every sample of vLLM's own capture, and a mistake there gives
plausible, wrong rows. Only code whose every value is one of the known forms is told by name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.seams._bindings import last_name
from harness.seams._classes import Class, Classes
from harness.seams._flow import Flow, Point
from harness.seams._forms import argument_in, at, bound, fits, forms, keyword
from harness.seams._reading import ABSENT, UNKNOWN, flow, methods_with, through

_SPECULATIVE = "vllm.config.speculative"
_CONFIG = "vllm.transformers_utils.configs.extract_hidden_states"
_RUNNER = ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner")
PROPOSER = ("vllm.v1.spec_decode.extract_hidden_states", "ExtractHiddenStatesProposer")
_IDS = "eagle_aux_hidden_state_layer_ids"
_DRAFT = "self.speculative_config.draft_model_config.hf_config"
_KEPT = "self.execute_model_state"


def method_name(classes: Classes) -> str:
    """The method by which configuration, runner and drafter know the capture."""
    runner = classes.find(*_RUNNER)
    if classes.find(*PROPOSER) is None or runner is None:
        return ABSENT
    name = _asked_for(classes)
    places = (
        flow(classes, _SPECULATIVE, "SpeculativeConfig.__post_init__"),
        flow(classes, _RUNNER[0], f"{_RUNNER[1]}.__init__"),
        flow(classes, _RUNNER[0], f"{_RUNNER[1]}.propose_draft_token_ids"),
    )
    made = ("ExtractHiddenStatesConfig", PROPOSER[1], "propose")
    for found, what in zip(places, made, strict=True):
        ways = [_way(point) for _, point in found.calls(what)] if found else []
        if not any(way in ("", name) for way in ways):
            return UNKNOWN
    return name or UNKNOWN


def layer_ids(classes: Classes) -> str:
    """Which depths the model is told of: ``as configured``, or ``unknown``."""
    runner = classes.find(*_RUNNER)
    if classes.find(*PROPOSER) is None or runner is None:
        return ABSENT
    read = flow(classes, _RUNNER[0], f"{_RUNNER[1]}._get_eagle3_aux_layers_from_config")
    kept = _config_keeps(classes) and _config_is_given(classes)
    told = read is not None and _ids_read(read) and _ids_set(classes, runner)
    return "as configured" if kept and told else UNKNOWN


def cut(classes: Classes) -> str:
    """Which rows the drafter is handed: ``scheduled, each depth in order``, or ``unknown``."""
    runner, took = classes.find(*_RUNNER), flow(classes, PROPOSER[0], f"{PROPOSER[1]}.propose")
    if took is None or runner is None:
        return ABSENT if classes.find(*PROPOSER) is None else UNKNOWN
    number = _stacked(took)
    proposals = list(_proposals(classes))
    if number is None or not proposals:
        return UNKNOWN
    for call, point in proposals:
        given = at(bound(call, took.node, number), point)
        rows = "[each0[:arg1.total_num_scheduled_tokens] for each0 in ARG]"
        source = argument_in(given, rows)
        if source is None or not _comes_from_model(classes, runner, source):
            return UNKNOWN
    return "scheduled, each depth in order"


def stacked(classes: Classes) -> str:
    """How rows of all depths are put together: ``token, depth, hidden``, or ``unknown``."""
    took = flow(classes, PROPOSER[0], f"{PROPOSER[1]}.propose")
    if took is None:
        return ABSENT if classes.find(*PROPOSER) is None else UNKNOWN
    number = _stacked(took)
    ran = [(call, point) for call, point in took.calls("model")]
    told = [at(keyword(call, "hidden_states"), point) for call, point in ran]
    whole = all(fits(one, "self.hidden_states[:ANY]") for one in told)
    return "token, depth, hidden" if number is not None and told and whole else UNKNOWN


def slots(classes: Classes) -> str:
    """Which slots the rows go to: those of the batch, of which cache group, or ``unknown``."""
    runner, took = classes.find(*_RUNNER), flow(classes, PROPOSER[0], f"{PROPOSER[1]}.propose")
    if took is None or runner is None:
        return ABSENT if classes.find(*PROPOSER) is None else UNKNOWN
    mapped = flow(classes, PROPOSER[0], f"{PROPOSER[1]}._get_slot_mapping")
    calls = list(took.calls("set_forward_context"))
    if mapped is None or len(calls) != 1 or not _slots_kept(mapped):
        return UNKNOWN
    call, point = calls[0]
    own = "self._get_slot_mapping(ANY, ARG.slot_mapping)"
    number = argument_in(at(keyword(call, "slot_mapping"), point), own)
    for given, there in _proposals(classes):
        passed = at(bound(given, took.node, number), there) if number else frozenset()
        source = argument_in(passed, "ARG")
        if source is None or not _comes_from_batch(classes, runner, source):
            return UNKNOWN
    return _group(classes)


def _compared(node: ast.expr) -> str:
    """Return the name that ``....method == "name"`` asks for; "" for another test."""
    if not isinstance(node, ast.Compare) or last_name(node.left) != "method":
        return ""
    other = node.comparators[0]
    same = len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq)
    return str(other.value) if same and isinstance(other, ast.Constant) else ""


def _way(point: Point) -> str | None:
    """Return the method for which a point is reached; "": the one that the configuration says."""
    asked = [guard.test for guard in point.guards if guard.holds]
    for test in reversed(asked):
        if _compared(test):
            return _compared(test)
        if isinstance(test, ast.Call) and last_name(test) == "uses_extract_hidden_states":
            return ""
    return None


def _asked_for(classes: Classes) -> str:
    """Return the name that ``uses_extract_hidden_states`` asks for; "" where it is not clear."""
    asked = flow(classes, _SPECULATIVE, "SpeculativeConfig.uses_extract_hidden_states")
    named = [_compared(value) for value, _ in asked.returned()] if asked else []
    return named[0] if len(named) == 1 else ""


def _proposals(classes: Classes) -> Iterator[tuple[ast.Call, Point]]:
    """Yield the calls of ``propose`` that are made for this method."""
    name = _asked_for(classes)
    found = flow(classes, _RUNNER[0], f"{_RUNNER[1]}.propose_draft_token_ids")
    for call, point in found.calls("propose") if found and name else ():
        if _way(point) in ("", name):
            yield call, point


def _config_keeps(classes: Classes) -> bool:
    """Whether the drafter's configuration has the ids that it was given."""
    made = flow(classes, _CONFIG, "ExtractHiddenStatesConfig.__init__")
    calls = list(made.calls("__init__")) if made else []
    if len(calls) != 1:
        return False
    call, point = calls[0]
    stars = [one.value for one in call.keywords if one.arg is None]
    base = "{k: v for k, v in {**ANY, **kwargs}.items() if k != 'architectures'}"
    named = f"_then({base}, _set('architectures', ANY))"
    text = f"_then({named}, _set('text_config', ANY))"
    return len(stars) == 1 and not call.args and fits(at(stars[0], point), named, text)


def _config_is_given(classes: Classes) -> bool:
    """Whether the drafter's configuration is made of the target's and what the user gave."""
    post = flow(classes, _SPECULATIVE, "SpeculativeConfig.__post_init__")
    calls = list(post.calls("ExtractHiddenStatesConfig")) if post else []
    own = "self.draft_model_config"
    for call, point in calls:
        stars = [one.value for one in call.keywords if one.arg is None]
        given = at(stars[0], point) if len(stars) == 1 else ()
        first = at(call.args[0], point) if call.args else ()
        told = (f"{own}.hf_config.to_dict()", f"{own}['hf_config']")
        whole = all(fits(given, "{}", *told, needs=one) for one in told)
        if not fits(first, f"{own}.hf_config") or not whole:
            return False
    return bool(calls)


def _ids_read(read: Flow) -> bool:
    """Whether the configured ids are read first, and given as they are."""
    found = frozenset(text for value, point in read.returned() for text in at(value, point))
    first, other = f"{_DRAFT}.{_IDS}", f"{_DRAFT}.dflash_config.get('target_layer_ids')"
    others = (
        other,
        f"[each0 + 1 for each0 in {other} or []]",
        f"{_DRAFT}.eagle_config.get('{_IDS}')",
    )
    return fits(found, "None", *(f"{first} or {one}" for one in others), needs=first)


def _ids_set(classes: Classes, runner: Class) -> bool:
    """Whether every place that tells the model its layers tells those, or the model's own."""
    read = "self._get_eagle3_aux_layers_from_config()"
    own = ("get_eagle3_aux_hidden_state_layers", "get_eagle3_default_aux_hidden_state_layers")
    told = [
        at(call.args[0], point) if len(call.args) == 1 else frozenset()
        for node in methods_with(classes, runner, "set_aux_hidden_state_layers(")
        for call, point in through(classes, node).calls("set_aux_hidden_state_layers")
    ]
    return bool(told) and all(
        fits(one, *(f"{read} or self.model.{o}()" for o in own)) for one in told
    )


def _stacked(took: Flow) -> int | None:
    """Return the argument that ``propose`` stacks by depth into the drafter's buffer."""
    rows = "torch.stack(ARG, dim=1)"
    stores = list(took.stored("hidden_states"))
    numbers = {argument_in(at(value, point), rows) for _, value, point in stores}
    here = "self.hidden_states[:torch.stack(ANY, dim=1).shape[0]]"
    whole = all(fits(at(target, point), here) for target, _, point in stores)
    return numbers.pop() if whole and len(numbers) == 1 else None


def _comes_from_model(classes: Classes, runner: Class, number: int) -> bool:
    """Whether that argument of ``propose_draft_token_ids`` is what the model captured."""
    place = _kept_at(classes, runner, number)
    if place is None:
        return False
    first = _kept_at(classes, runner, 1)
    given = _put_at(classes, runner, place)
    captured = [text for text in given if text != "None"]
    ran = ("self._model_forward(ANY)[1]", "self.model(ANY)[1]")
    plan = () if first is None else _put_at(classes, runner, first)
    same = fits(plan, "arg1", "replace(arg1, ANY)")
    return same and bool(captured) and fits(captured, *ran) and _runs_model(classes, runner)


def _comes_from_batch(classes: Classes, runner: Class, number: int) -> bool:
    """Whether that argument of ``propose_draft_token_ids`` is the batch's own metadata."""
    place = _kept_at(classes, runner, number)
    if place is None:
        return False
    built = [text for text in _put_at(classes, runner, place) if text != "None"]
    return fits(built, "self._build_attention_metadata(ANY)[1]")


def _kept_at(classes: Classes, runner: Class, number: int) -> int | None:
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
    places = [n for n in range(32) if fits(texts, f"{_KEPT}[{n}]")]
    return places[0] if places else None


def _put_at(classes: Classes, runner: Class, place: int) -> frozenset[str]:
    """Return what ``execute_model`` keeps at a place of its state."""
    ran = flow(classes, runner.module, f"{runner.name}.execute_model")
    texts: frozenset[str] = frozenset()
    for call, point in ran.calls("ExecuteModelState") if ran else ():
        if place >= len(call.args):
            return frozenset()
        texts |= at(call.args[place], point)
    return texts


def _runs_model(classes: Classes, runner: Class) -> bool:
    ran = flow(classes, runner.module, f"{runner.name}._model_forward")
    return ran is not None and all(
        fits(at(value, point), "self.model(ANY)") for value, point in ran.returned()
    )


def _slots_kept(mapped: Flow) -> bool:
    """Whether the buffer holds the slots that it was given, then padding, and is read so far."""
    own = "self._slot_mapping_buffer"
    stores = [
        (at(target, point), at(value, point))
        for target, value, point in mapped.stored("_slot_mapping_buffer")
    ]
    held = all(
        fits(target, f"{own}[:arg2.shape[0]]") and fits(value, "arg2") for target, value in stores
    )
    pads = [
        at(call.func.value, point)
        for call, point in mapped.calls("fill_")
        if isinstance(call.func, ast.Attribute)
    ]
    padded = all(fits(one, f"{own}[arg2.shape[0]:arg1]") for one in pads)
    given = [at(value, point) for value, point in mapped.returned()]
    names = f"{{each0: {own}[:arg1] for each0 in self.attn_layer_names}}"
    return bool(stores) and held and padded and bool(given) and all(fits(g, names) for g in given)


def _group(classes: Classes) -> str:
    """Say whose cache group's slots the batch's metadata carries to the drafter."""
    built = flow(classes, _RUNNER[0], f"{_RUNNER[1]}._build_attention_metadata")
    number = "_each(enumerate(self.kv_cache_config.kv_cache_groups))[0]"
    own = [
        at(value, point)
        for target, value, point in (built.stored("slot_mapping") if built else ())
        if isinstance(target, ast.Attribute) and last_name(target.value) != "self"
    ]
    if built is None or not own or not all(fits(one, f"ANY[{number}]") for one in own):
        return UNKNOWN
    chosen = [
        guard
        for point in built.points
        for guard in point.guards
        if isinstance(point.node, ast.Assign) and "kv_cache_gid ==" in ast.unparse(guard.test)
    ]
    asked = {text for one in chosen for text in forms(one.test, one.env)}
    if not fits(asked, f"self.drafter.kv_cache_gid == {number}"):
        return UNKNOWN
    listed = any(
        PROPOSER[1] in ast.unparse(guard.test)
        for point in built.points
        for guard in point.guards
        if guard.holds and isinstance(guard.test, ast.Call)
    )
    return f"the batch's, {'drafter' if listed else 'first'} group"


PROBES = {
    "native.method": method_name,
    "native.layer-ids": layer_ids,
    "native.rows.cut": cut,
    "native.rows.axes": stacked,
    "native.rows.slots": slots,
}
