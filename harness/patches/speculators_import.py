"""``import speculators`` under transformers 5."""

from __future__ import annotations

from typing import Any

from harness.patches._modules import CONFIGURATION, live
from harness.patches._patch import Change, NotNeeded, Patch, Process
from harness.patches._state import State, needed
from harness.seams import Surface


def _make(found: Any) -> Any:
    if found is not None:
        raise NotNeeded("transformers has torch there")
    module = live(CONFIGURATION)
    config = getattr(module, "PreTrainedConfig", None) or module.PretrainedConfig
    if not any("torch" in str(kind) for kind in vars(config).get("__annotations__", {}).values()):
        raise NotNeeded("no annotation names torch")
    return live("torch")


def _judge(surface: Surface) -> State:
    return needed("decided at the import, by the transformers that is there")


PATCH = Patch(
    id="speculators-import",
    process=Process.BOTH,
    seam=None,
    module=CONFIGURATION,
    changes=(Change("torch", _make, adds=True),),
    summary="Puts torch where pydantic looks for the types of a transformers configuration.",
    fault="pydantic.errors.PydanticUndefinedAnnotation: name 'torch' is not defined",
    silent=False,
    judge=_judge,
    releases=">=0.11",
    retire_when="speculators 0.3 is no longer used, or only with transformers 4",
    upstream="transformers 5: PreTrainedConfig is a data class, with torch imported for type "
    "checkers only",
)
