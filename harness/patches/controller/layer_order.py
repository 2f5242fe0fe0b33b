"""Layers come back in ascending order, whatever order was asked for."""

from __future__ import annotations

from typing import Any

from harness.patches._modules import GENERATOR
from harness.patches._patch import Change, Patch, Process
from harness.patches._state import State, needed
from harness.seams import Surface


def _make(original: Any) -> Any:
    def generate(self: Any, *args: Any, **arguments: Any) -> Any:
        results = original(self, *args, **arguments)
        ascending = sorted(set(self.layer_ids))
        places = [ascending.index(layer) for layer in self.layer_ids]
        for result in results:
            states = result["hidden_states"]
            result["hidden_states"] = [states[place] for place in places]
        return results

    return generate


def _judge(surface: Surface) -> State:
    return needed("the fault is in speculators 0.3.0")


PATCH = Patch(
    id="layer-order",
    process=Process.CONTROLLER,
    seam=None,
    module=GENERATOR,
    changes=(Change("VllmHiddenStatesGenerator.generate", _make),),
    summary="Returns the layers in the caller's order, repeated ones too.",
    fault="layer_ids=[5, 1, 3] comes back as 1, 3, 5",
    silent=True,
    judge=_judge,
    releases=">=0.11",
    retire_when="speculators 0.3 is no longer used",
    upstream="speculators 0.3.0, custom_worker.py: layer ids are kept in a frozenset",
)
