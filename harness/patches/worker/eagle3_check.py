"""A model is refused because its class does not declare ``SupportsEagle3``."""

from __future__ import annotations

from typing import Any

from harness.patches._modules import EXTENSION
from harness.patches._patch import Change, Patch, Process
from harness.patches._state import State, broken, needed, obsolete
from harness.patches.worker._walk import base_model
from harness.seams import UNKNOWN, Surface

_PROBES = {"deepseek.supports-eagle3": "DeepseekV2", "kimi.supports-eagle3": "KimiK25"}


def _judge(surface: Surface) -> State:
    values = {name: surface.probe(probe) for probe, name in _PROBES.items()}
    if UNKNOWN in values.values():
        return broken("the classes have a shape not known")
    without = [name for name, value in values.items() if value == "no"]
    if not without:
        return obsolete("the models declare it")
    return needed(f"not declared by {' and '.join(without)}")


def _make(original: Any) -> Any:
    def supports_eagle3(model: Any) -> bool:
        # What the capture really needs. The interface is about heads that vLLM runs itself.
        return base_model(model) is not None

    return supports_eagle3


PATCH = Patch(
    id="eagle3-check",
    process=Process.WORKER,
    seam="eagle3.supports",
    module=EXTENSION,
    changes=(Change("supports_eagle3", _make),),
    summary="Takes every model that has decoder layers and a final norm.",
    fault="RuntimeError: Worker failed with error 'Model DeepseekV3ForCausalLM does not support "
    "hidden state extraction'",
    silent=False,
    judge=_judge,
    releases="<0.18",
    retire_when="releases before 0.18.0 are no longer used",
    upstream="vLLM 0.18.0: DeepSeek and Kimi-K2.5 declare it",
)
