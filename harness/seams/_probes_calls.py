"""Probes of the models' ``forward``: what is handed on between them, and what is called as module.

The text model gives its last state and, where depths are wanted, the list of what it captured.
Two more ``forward`` stand between it and the runner. Hooks fire only where a module is called
itself, not one of its methods or a function with its weights.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.seams._classes import Classes
from harness.seams._flow import Flow, Point
from harness.seams._forms import at, fits, forms
from harness.seams._in_place import unchanged
from harness.seams._reading import ABSENT, UNKNOWN, flow
from harness.seams._runner import PROPOSER

_DEEPSEEK = "vllm.model_executor.models.deepseek_v2"
_KIMI = ("vllm.model_executor.models.kimi_k25", "KimiK25ForConditionalGeneration")
_MODEL = "DeepseekV2Model"
_WRAPS = (
    (_DEEPSEEK, "DeepseekV2ForCausalLM", "model"),
    (_DEEPSEEK, "DeepseekV3ForCausalLM", "model"),
    (*_KIMI, "language_model"),
)
"""Each class between the text model and the runner, and the attribute that it calls."""
_WANTED = "aux_hidden_state_layers"


def handed_on(classes: Classes) -> str:
    """What the runner gets of the text model: ``as returned``, or ``unknown``."""
    if classes.find(*PROPOSER) is None:
        return ABSENT
    whole = all(_hands_on(classes, *wrap) for wrap in _WRAPS)
    return "as returned" if whole else UNKNOWN


def _hands_on(classes: Classes, module: str, name: str, inner: str) -> bool:
    """Whether a class's ``forward`` returns what one call of its inner model returned."""
    cls = classes.find(module, name)
    found = None if cls is None else flow(classes, module, f"{name}.forward")
    if cls is None or found is None or found.node.decorator_list:
        return False
    called = any("__call__" in one.names for one in classes.order(cls))
    ran = f"self.{inner}"
    back = [at(value, point) for value, point in found.returned()]
    return (
        not called
        and len(list(found.calls(inner))) == 1
        and bool(back)
        and all(fits(one, f"{ran}(ANY)") for one in back)
        and unchanged(found, ran, by=[inner])
    )


def called_as_modules(classes: Classes) -> str:
    """How ``DeepseekV2Model`` runs embedding, layers and norm: ``as modules``, or ``unknown``."""
    found = flow(classes, _DEEPSEEK, f"{_MODEL}.forward")
    if found is None:
        return UNKNOWN
    layers = list(_calls_of(found, *_EACH_LAYER))
    norms = [point for point in _calls_of(found, "self.norm") if not _for_depths(point)]
    whole = (
        len(layers) == 1
        and not layers[0].guards
        and len(norms) == 1
        and _only(norms[0], f"not {_LAST}", _LAST)
        and _embeds(classes, found)
    )
    return "as modules" if whole else UNKNOWN


_HERE = ("islice(self.layers, self.start_layer, self.end_layer)",
         "self.layers[self.start_layer:self.end_layer]")  # fmt: skip
_EACH_LAYER = tuple(
    form
    for here in _HERE
    for form in (
        f"_each({here})",
        f"_each(enumerate({here}))[1]",
        f"_each(enumerate({here}, self.start_layer))[1]",
        f"_each(enumerate({here}, start=self.start_layer))[1]",
    )
)


def _calls_of(found: Flow, *modules: str) -> Iterator[Point]:
    """Yield where the function itself calls what these texts say."""
    for _, call, point in found.every_call():
        if not point.inner and fits(at(call.func, point), *modules):
            yield point


def _for_depths(point: Point) -> bool:
    """Whether a point is reached only where depths are wanted of the model itself."""
    return any(
        guard.holds and all(_WANTED in text for text in forms(guard.test, guard.env))
        for guard in point.guards
    )


def _only(point: Point, *tests: str) -> bool:
    """Whether nothing but these is asked on the way to a point."""
    return all(fits(forms(guard.test, guard.env), *tests) for guard in point.guards)


_FIRST, _LAST = "get_pp_group().is_first_rank", "get_pp_group().is_last_rank"


def _embeds(classes: Classes, found: Flow) -> bool:
    """Whether ids become states by a call of the embedding, here and for whoever asks before."""
    calls = [(name, *one) for name in _EMBEDS for one in found.calls(name)]
    if len(calls) != 1:
        return False
    ((name, call, point),) = calls
    known = _only(point, _FIRST, "arg4 is not None", "arg4 is None", "arg1 is None")
    return (
        known
        and fits(at(call, point), f"self.{name}(arg1)")
        and all(
            fits(_returns(classes, cls, name), given)
            for cls, given in (
                (_MODEL, "self.embed_tokens(arg1)"),
                ("DeepseekV2ForCausalLM", f"self.model.{name}(arg1)"),
                ("DeepseekV3ForCausalLM", f"self.model.{name}(arg1)"),
            )
        )
    )


_EMBEDS = ("embed_input_ids", "get_input_embeddings")


def _returns(classes: Classes, cls: str, name: str) -> frozenset[str]:
    found = flow(classes, _DEEPSEEK, f"{cls}.{name}")
    back = found.returned() if found is not None else ()
    return frozenset(text for value, point in back for text in at(value, point))


PROBES = {
    "native.rows.handed-on": handed_on,
    "deepseek.calls": called_as_modules,
}
