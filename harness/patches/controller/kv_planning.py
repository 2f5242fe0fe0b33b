"""What plans the KV cache lies in a module of its own; 0.3.0 imports it from the old one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from harness.patches._modules import CACHE_UTILS, live
from harness.patches._patch import Change, NotNeeded, Patch, Process
from harness.patches._state import State, broken, needed, obsolete
from harness.seams import Surface

_MODULE = "vllm.v1.core.kv_cache_planning"
_NAMES = {
    "kv.groups-uniform": "_get_kv_cache_groups_uniform_spec",
    "kv.unify-hybrid": "unify_hybrid_kv_cache_specs",
    "kv.config-from-groups": "get_kv_cache_config_from_groups",
}


class _Moved:
    """Stands for a function in its new place.

    That place is looked at when it is first needed and not before: it imports the old one.
    """

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *args: Any, **arguments: Any) -> Any:
        return self._there()(*args, **arguments)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._there())

    def _there(self) -> Callable[..., Any]:
        found: Callable[..., Any] | None = getattr(live(_MODULE), self.__name__, None)
        if found is None:
            raise ImportError(f"cannot import name {self.__name__!r} from {_MODULE!r}")
        return found


def _make(name: str) -> Callable[[Any], Any]:
    def make(found: Any) -> Any:
        if found is not None:
            raise NotNeeded(f"{name} is where it was")
        return _Moved(name)

    return make


def _judge(surface: Surface) -> State:
    entries = {seam: surface.entry(seam) for seam in _NAMES}
    gone = [seam for seam, entry in entries.items() if entry.missing]
    if gone:
        return broken(f"gone: {', '.join(gone)}")
    new = {f"{_MODULE}:{name}" for name in _NAMES.values()}
    old = {f"{CACHE_UTILS}:{name}" for name in _NAMES.values()}
    places = {path for entry in entries.values() for path in entry.paths}
    if old <= places:
        return obsolete("the names are where 0.3.0 looks for them")
    if places == new:
        return needed(f"the names are in {_MODULE}")
    return broken(f"in part elsewhere: {', '.join(sorted(places))}")


PATCH = Patch(
    id="kv-planning",
    process=Process.CONTROLLER,
    seam="kv.config-from-groups",
    module=CACHE_UTILS,
    changes=tuple(Change(name, _make(name), adds=True) for name in _NAMES.values()),
    summary="Puts the functions that plan the KV cache back where 0.3.0 imports them from.",
    fault="ImportError: cannot import name '_get_kv_cache_groups_uniform_spec' from "
    "'vllm.v1.core.kv_cache_utils'",
    silent=False,
    judge=_judge,
    releases=">=0.33",
    retire_when="speculators 0.3 and 0.4 are no longer used: both import them from there",
    upstream="vLLM 0.33.0, vllm/v1/core/kv_cache_planning.py",
    repairs={seam: f"moved:{name}" for seam, name in _NAMES.items()},
)
