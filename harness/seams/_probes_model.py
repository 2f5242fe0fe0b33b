"""Probes of the models: who captures what, and what a layer hands on."""

from __future__ import annotations

import ast

from harness.seams._bindings import last_name
from harness.seams._classes import Classes
from harness.seams._syntax import mentions, method, strings
from harness.seams._walk import walk

ABSENT, UNKNOWN = "absent", "unknown"
_DEEPSEEK = "vllm.model_executor.models.deepseek_v2"
_KIMI = ("vllm.model_executor.models.kimi_k25", "KimiK25ForConditionalGeneration")


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
    return _declares(classes, _DEEPSEEK, "DeepseekV2ForCausalLM")


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
    after the loop. A loop that counts ``idx + 1`` after each layer would give it too.
    """
    node = method(classes, _DEEPSEEK, "DeepseekV2Model", "forward")
    if node is None:
        return UNKNOWN
    if not mentions(node, "aux_hidden_state_layers") and not mentions(
        node, "_maybe_add_hidden_state"
    ):
        return "none"
    return "inner, final" if any(_final(part) for part in walk(node)) else "inner"


def capture_point(classes: Classes) -> str:
    """Does ``DeepseekV2Model`` take a depth on entering (``before``) or on leaving a layer?"""
    node = method(classes, _DEEPSEEK, "DeepseekV2Model", "forward")
    if node is None:
        return UNKNOWN
    if capture(classes) == "none":
        return "none"
    for loop in (part for part in walk(node) if isinstance(part, ast.For)):
        taken = [n for n, one in enumerate(loop.body) if _takes(one)]
        layer = [n for n, one in enumerate(loop.body) if "layer" in _called(one)]
        if taken and layer:
            return "before" if taken[-1] < layer[0] else "after"
    return UNKNOWN


def _takes(node: ast.AST) -> bool:
    return mentions(node, "aux_hidden_state_layers") or mentions(node, "_maybe_add_hidden_state")


def _called(node: ast.AST) -> set[str]:
    return {last_name(part.func) for part in walk(node) if isinstance(part, ast.Call)}


def _final(part: ast.AST) -> bool:
    if isinstance(part, ast.Compare) and isinstance(part.ops[0], ast.In):
        held, where = part.left, part.comparators[0]
        return last_name(held) == "end_layer" and last_name(where) == "aux_hidden_state_layers"
    if isinstance(part, ast.Call) and last_name(part.func) == "_maybe_add_hidden_state":
        return any(isinstance(argument, ast.BinOp) for argument in part.args)
    return False


def _declares(classes: Classes, module: str, name: str) -> str:
    cls = classes.find(module, name)
    if cls is None:
        return ABSENT
    return "yes" if any(one.name == "SupportsEagle3" for one in classes.order(cls)) else "no"


PROBES = {
    "kimi.language-model": kimi_language_model,
    "kimi.supports-eagle3": kimi_eagle3,
    "deepseek.supports-eagle3": deepseek_eagle3,
    "deepseek.layer.token-sharded": token_sharded,
    "deepseek.capture": capture,
    "deepseek.capture.point": capture_point,
}
