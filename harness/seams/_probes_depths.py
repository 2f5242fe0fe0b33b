"""Probes of the layer ids: from the configuration to the model, and as the model keeps them."""

from __future__ import annotations

import ast

from harness.seams._classes import Class, Classes
from harness.seams._flow import Flow
from harness.seams._forms import at, fits, forms
from harness.seams._in_place import unchanged
from harness.seams._reading import ABSENT, UNKNOWN, flow, is_one_of, methods_with, through
from harness.seams._runner import PROPOSER, RUNNER, SPECULATIVE, asked_for, way_to

_CONFIG = "vllm.transformers_utils.configs.extract_hidden_states"
_INTERFACES = "vllm.model_executor.models.interfaces"
_IDS = "eagle_aux_hidden_state_layer_ids"
_DRAFT = "self.speculative_config.draft_model_config.hf_config"


def layer_ids(classes: Classes) -> str:
    """Which depths the model is told of: ``as configured``, or ``unknown``."""
    runner = classes.find(*RUNNER)
    if classes.find(*PROPOSER) is None or runner is None:
        return ABSENT
    read = flow(classes, RUNNER[0], f"{RUNNER[1]}._get_eagle3_aux_layers_from_config")
    kept = _config_keeps(classes) and _config_is_given(classes)
    told = read is not None and _ids_read(read) and _ids_set(classes, runner)
    told = told and _is_asked(classes, runner)
    return "as configured" if kept and told else UNKNOWN


def shared_ids(classes: Classes) -> str:
    """How models that share vLLM's own capture keep their ids: ``as told``, or in which order."""
    kept = flow(classes, _INTERFACES, "EagleModelMixin._set_aux_hidden_state_layers")
    told = flow(classes, _INTERFACES, "SupportsEagle3.set_aux_hidden_state_layers")
    if kept is None or told is None:
        mixin = classes.find(_INTERFACES, "EagleModelMixin")
        return ABSENT if mixin is None else UNKNOWN
    ids = frozenset(
        text for _, value, p in kept.stored("aux_hidden_state_layers") for text in at(value, p)
    )
    calls = list(told.calls("_set_aux_hidden_state_layers"))
    handed = [at(call.args[0], p) if len(call.args) == 1 else () for call, p in calls]
    if not handed or not all(fits(one, "arg1") for one in handed):
        return UNKNOWN
    return is_one_of(
        {"as told": fits(ids, "arg1"), "sorted, each once": fits(ids, "sorted(set(arg1))")}
    )


def shared_state(classes: Classes) -> str:
    """What models that share vLLM's own capture take of a wanted depth: ``sum``, or ``unknown``."""
    found = flow(classes, _INTERFACES, "EagleModelMixin._maybe_add_hidden_state")
    if found is None:
        mixin = classes.find(_INTERFACES, "EagleModelMixin")
        return ABSENT if mixin is None else UNKNOWN
    taken = list(found.calls("append"))
    asked = [
        (text, guard.holds)
        for _, point in taken
        for guard in point.guards
        for text in forms(guard.test, guard.env)
    ]
    wanted = [
        fits([text], "arg2 in self.aux_hidden_state_layers") and holds for text, holds in asked
    ]
    if len(taken) != 1 or len(wanted) != 1 or not all(wanted):
        return UNKNOWN
    call, point = taken[0]
    given = at(call.args[0], point) if call.args else ()
    filled = at(call.func.value, point) if isinstance(call.func, ast.Attribute) else ()
    held = fits(given, "arg3", "arg4 + arg3", "arg3 + arg4") and len(given) == 2
    kept = unchanged(found, "arg1", "arg3", "arg4", by=["append"])
    return "sum" if held and kept and fits(filled, "arg1") else UNKNOWN


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
    post = flow(classes, SPECULATIVE, "SpeculativeConfig.__post_init__")
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
    if not unchanged(read, "self.speculative_config"):
        return False
    return fits(found, "None", *(f"{first} or {one}" for one in others), needs=first)


def _ids_set(classes: Classes, runner: Class) -> bool:
    """Whether every place that tells the model its layers tells those, or the model's own."""
    read = "self._get_eagle3_aux_layers_from_config()"
    own = ("get_eagle3_aux_hidden_state_layers", "get_eagle3_default_aux_hidden_state_layers")
    setters = list(methods_with(classes, runner, "set_aux_hidden_state_layers("))
    told = [
        at(call.args[0], point) if len(call.args) == 1 else frozenset()
        for node in setters
        for call, point in through(classes, node).calls("set_aux_hidden_state_layers")
    ]
    loads = flow(classes, runner.module, f"{runner.name}.load_model")
    reached = loads is not None and all(
        one.name == "load_model" or any(True for _ in loads.calls(one.name)) for one in setters
    )
    return (
        reached
        and bool(told)
        and all(fits(one, *(f"{read} or self.model.{o}()" for o in own)) for one in told)
    )


def _is_asked(classes: Classes, runner: Class) -> bool:
    """Whether the runner asks the model for its states where it makes this drafter."""
    name = asked_for(classes)
    setters = list(methods_with(classes, runner, f"self.{_ASKS} = "))
    made = flow(classes, runner.module, f"{runner.name}.__init__")
    stores = list(made.stored(_ASKS)) if made else []
    ours = [n for n, (_, _, point) in enumerate(stores) if way_to(point) in ("", name)]
    if len(ours) != 1 or [one.name for one in setters] != ["__init__"]:
        return False
    _, value, at_ours = stores[ours[0]]
    later = [point for _, _, point in stores[ours[0] + 1 :]]
    kept = all(len(point.guards) >= len(at_ours.guards) for point in later)
    return fits(at(value, at_ours), "True") and kept


_ASKS = "use_aux_hidden_state_outputs"


PROBES = {
    "native.layer-ids": layer_ids,
    "eagle3.mixin.layer-ids": shared_ids,
    "eagle3.mixin.state": shared_state,
}
