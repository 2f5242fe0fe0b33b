"""Probes of the models: who captures what, and what a layer hands on."""

from __future__ import annotations

import ast

from harness.seams._bindings import last_name
from harness.seams._captures import captured_by_branches, hands_on
from harness.seams._classes import Classes
from harness.seams._syntax import mentions, method, strings
from harness.seams._walk import walk

ABSENT, UNKNOWN = "absent", "unknown"
_DEEPSEEK = "vllm.model_executor.models.deepseek_v2"
_KIMI = ("vllm.model_executor.models.kimi_k25", "KimiK25ForConditionalGeneration")
_CAUSAL = "DeepseekV2ForCausalLM"
_WANTED, _HELPER = "aux_hidden_state_layers", "_maybe_add_hidden_state"


def kimi_language_model(classes: Classes) -> str:
    """The class of ``KimiK25ForConditionalGeneration.language_model``."""
    kimi = classes.find(*_KIMI)
    if kimi is None:
        return ABSENT
    found = classes.assignment(kimi, "language_model")
    if found is None or found.value is None:
        return UNKNOWN
    made_by = last_name(found.value)
    if made_by == "init_vllm_registered_model":
        names = [text for text in strings(found.value) if text.startswith("Deepseek")]
        return names[0] if len(names) == 1 else UNKNOWN
    return made_by if made_by.startswith("Deepseek") else UNKNOWN


def deepseek_eagle3(classes: Classes) -> str:
    """Does ``DeepseekV2ForCausalLM`` declare ``SupportsEagle3``?"""
    return _declares(classes, _DEEPSEEK, _CAUSAL)


def kimi_eagle3(classes: Classes) -> str:
    """Does ``KimiK25ForConditionalGeneration`` declare ``SupportsEagle3``?"""
    return _declares(classes, *_KIMI)


def token_sharded(classes: Classes) -> str:
    """May a DeepSeek layer hand on rows of some tokens only (sequence-parallel experts)?"""
    node = method(classes, _DEEPSEEK, "DeepseekV2DecoderLayer", "forward")
    if node is None:
        return UNKNOWN
    if mentions(node, "use_sequence_parallel_moe"):
        return "yes"
    spread = [text for text in _called(node) if "sequence_parallel" in text or "gather" in text]
    return UNKNOWN if spread else "no"


def capture(classes: Classes) -> str:
    """Which depths ``DeepseekV2Model`` itself captures: ``none``, ``inner`` or ``inner, final``.

    The final one is depth L; seen from 0.25.0 on as ``end_layer in aux_hidden_state_layers``
    after the loop. A loop that counts ``idx + 1`` after each layer would give it too. A depth
    counted otherwise, ids that are not kept as they were told, or a state that is not
    ``hidden_states + residual``: ``unknown``, for each would be plausible, wrong rows.
    """
    node = method(classes, _DEEPSEEK, "DeepseekV2Model", "forward")
    if node is None:
        return UNKNOWN
    if not _takes(node):
        return "none"
    if not all(_reached(classes, *place) for place in (_KIMI, (_DEEPSEEK, _CAUSAL))):
        return UNKNOWN
    if mentions(node, _HELPER):
        on = any(_counts_on(part) for part in walk(node))
        if _point(node) == ("before" if on else "after"):
            return UNKNOWN
        return "inner, final" if on else "inner"
    return captured_by_branches(node)


def capture_point(classes: Classes) -> str:
    """Does ``DeepseekV2Model`` take a depth on entering (``before``) or on leaving a layer?"""
    node = method(classes, _DEEPSEEK, "DeepseekV2Model", "forward")
    if node is None:
        return UNKNOWN
    return _point(node) if _takes(node) else "none"


def _point(node: ast.AST) -> str:
    for loop in (part for part in walk(node) if isinstance(part, ast.For)):
        taken = [n for n, one in enumerate(loop.body) if _takes(one)]
        layer = [n for n, one in enumerate(loop.body) if "layer" in _called(one)]
        if taken and layer:
            return "before" if taken[-1] < layer[0] else "after"
    return UNKNOWN


def _takes(node: ast.AST) -> bool:
    return mentions(node, _WANTED) or mentions(node, _HELPER)


def _called(node: ast.AST) -> set[str]:
    return {last_name(part.func) for part in walk(node) if isinstance(part, ast.Call)}


def _counts_on(part: ast.AST) -> bool:
    """Whether a part captures ``idx + 1``."""
    if not isinstance(part, ast.Call) or last_name(part.func) != _HELPER:
        return False
    return any(isinstance(argument, ast.BinOp) for argument in part.args)


def _declares(classes: Classes, module: str, name: str) -> str:
    cls = classes.find(module, name)
    if cls is None:
        return ABSENT
    return "yes" if any(one.name == "SupportsEagle3" for one in classes.order(cls)) else "no"


def _reached(classes: Classes, module: str, name: str) -> bool:
    """Whether the ids that a class is told reach ``DeepseekV2Model`` as they are.

    The protocol's own setter asserts that the model shares vLLM's capture: with another model a
    class needs one of its own.
    """
    cls = classes.find(module, name)
    if cls is None:
        return module != _DEEPSEEK
    member = classes.member(cls, f"set_{_WANTED}")
    setter = None if member is None else member.value
    if member is None or not isinstance(setter, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    if member.owner.name == "SupportsEagle3":
        model = classes.find(_DEEPSEEK, "DeepseekV2Model")
        bases = classes.order(model) if model is not None else ()
        return any(one.name == "EagleModelMixin" for one in bases)
    return hands_on(setter, "layers")


PROBES = {
    "kimi.language-model": kimi_language_model,
    "kimi.supports-eagle3": kimi_eagle3,
    "deepseek.supports-eagle3": deepseek_eagle3,
    "deepseek.layer.token-sharded": token_sharded,
    "deepseek.capture": capture,
    "deepseek.capture.point": capture_point,
}
