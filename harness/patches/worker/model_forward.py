"""The generator rebuilds the model's forward pass, as some release had it."""

from __future__ import annotations

from functools import partial
from typing import Any

from harness.errors import CheckFailed
from harness.patches._judge import binds
from harness.patches._modules import EXTENSION
from harness.patches._patch import Change, Patch, Process
from harness.patches._state import State, broken, obsolete
from harness.seams import Call, Surface

_EMBED = "deepseek.model.embed"
_LAYER = "deepseek.layer.forward"
_FORWARD = "deepseek.model.forward"


def _judge(surface: Surface) -> State:
    for seam in (_EMBED, _LAYER, _FORWARD):
        if surface.entry(seam).missing:
            return broken(f"{seam} is gone")
    layer, forward = surface.entry(_LAYER).parsed(), surface.entry(_FORWARD).parsed()
    if layer is None or forward is None:
        return broken("no signature of the model or its layers")
    if surface.entry(_EMBED).paths[0].endswith(".embed_input_ids"):
        why = "get_input_embeddings is now embed_input_ids"
    elif "llama_4_scaling" in layer.parameters:
        why = "layers take a scaling that 0.3.0 leaves out"
    else:
        return obsolete("0.3.0's forward is the model's own")
    return binds(forward, Call(positional=4), why)


def _make(original: Any) -> Any:
    names = original.__globals__

    def _patched_forward(
        self: Any,
        input_ids: Any,
        positions: Any,
        intermediate_tensors: Any = None,
        inputs_embeds: Any = None,
        **extra: Any,
    ) -> Any:
        extension = self._extension
        # Every rank computes the same rows.
        first = names["get_tp_group"]().rank_in_group == 0
        taken: dict[int, Any] = {}
        hooks = [
            self.layers[layer].register_forward_hook(partial(_take, taken, layer))
            for layer in sorted(extension._layer_ids)
            if first and self.start_layer <= layer < self.end_layer
        ]
        try:
            # The class's own: embedding, scaling and gathering as this release does them.
            output = type(self).forward(
                self, input_ids, positions, intermediate_tensors, inputs_embeds, **extra
            )
        finally:
            for hook in hooks:
                hook.remove()
        if taken:
            extension._store_captured_states([taken[layer] for layer in sorted(taken)])
        return output

    return _patched_forward


def _take(taken: dict[int, Any], layer: int, module: Any, args: Any, output: Any) -> None:
    if not isinstance(output, tuple) or len(output) != 2 or output[1] is None:
        raise CheckFailed(
            "patches.layer-output",
            expected="hidden states and residual from a decoder layer",
            found=type(output).__name__,
            where=f"layer {layer}, {type(module).__name__}",
            next="use a model that the generator knows",
        )
    # A sum, so a tensor of its own: the next layer works on both in place.
    taken[layer] = output[0] + output[1]


PATCH = Patch(
    id="model-forward",
    process=Process.WORKER,
    seam=_FORWARD,
    module=EXTENSION,
    changes=(Change("_patched_forward", _make),),
    summary="Runs the model's own forward and takes the rows where each layer hands them on.",
    fault="RuntimeError: Worker failed with error ''DeepseekV2Model' object has no attribute "
    "'get_input_embeddings''; and silently, layers called without llama_4_scaling, for a "
    "configuration that sets it",
    silent=False,
    judge=_judge,
    releases=">=0.11.1",
    retire_when="speculators' in-process generator is no longer used: 0.4.0 rebuilds it too",
    upstream="vLLM 0.11.1 (embed_input_ids), 0.12.0 (llama_4_scaling), 0.25.0 (rows split over "
    "ranks), vllm/model_executor/models/deepseek_v2.py",
    repairs={
        "deepseek.model.embed": "moved:get_input_embeddings",
        "llama.model.embed": "moved:get_input_embeddings",
    },
)
