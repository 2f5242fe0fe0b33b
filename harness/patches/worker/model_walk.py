"""The model of a multimodal wrapper lies one step deeper."""

from __future__ import annotations

from typing import Any

from harness.errors import Refused
from harness.patches._modules import EXTENSION
from harness.patches._patch import Change, Patch, Process
from harness.patches._state import State, needed, obsolete
from harness.patches.worker._walk import base_model
from harness.seams import Surface


def _judge(surface: Surface) -> State:
    if surface.entry("kimi").missing:
        return obsolete("no Kimi-K2.5 in this release")
    return needed("KimiK25ForConditionalGeneration has no .model")


def _make(original: Any) -> Any:
    def _setup_hidden_states_capture(self: Any, layer_ids: Any) -> Any:
        model = self.model_runner.model
        base = base_model(model)
        if base is None:
            raise Refused(
                "patches.no-layers",
                expected="a model with layers, norm, start_layer and end_layer inside",
                found=type(model).__name__,
                where="worker.model_runner.model",
                next="use a model that the generator knows",
            )
        if getattr(model, "model", None) is base:
            return original(self, layer_ids)
        # Only for this call: a lasting attribute would change what vLLM sees of its model.
        model.__dict__["model"] = base
        try:
            return original(self, layer_ids)
        finally:
            del model.__dict__["model"]

    return _setup_hidden_states_capture


PATCH = Patch(
    id="model-walk",
    process=Process.WORKER,
    seam="kimi.language_model",
    module=EXTENSION,
    changes=(Change("HiddenStatesWorkerExtension._setup_hidden_states_capture", _make),),
    summary="Finds the decoder layers inside a wrapper.",
    fault="RuntimeError: Worker failed with error ''KimiK25ForConditionalGeneration' object has "
    "no attribute 'model''",
    silent=False,
    judge=_judge,
    releases=">=0.15",
    retire_when="speculators 0.3 is no longer used: 0.4.0 asks get_language_model()",
    upstream="vLLM 0.15.0, vllm/model_executor/models/kimi_k25.py",
)
