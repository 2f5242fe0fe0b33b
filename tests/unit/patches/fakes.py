"""Small stand-ins for speculators' two modules, with the signatures that a release recorded."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from harness.patches import Modules
from harness.patches._modules import CACHE_UTILS, CONFIGURATION, EXTENSION, GENERATOR
from harness.seams import Surface

_CONSTRUCTORS = {
    "SchedulerConfig": "config.scheduler",
    "CacheConfig": "config.cache",
    "ModelConfig": "config.model",
    "VllmConfig": "config.vllm",
    "Request": "request",
    "get_kv_cache_config_from_groups": "kv.config-from-groups",
}


def recorded_call(surface: Surface, seam: str, *, method: bool = False) -> Callable[..., Any]:
    """A function that takes what the release takes, and returns what it was given."""
    signature = surface.entry(seam).parsed()
    assert signature is not None, seam
    return taking(signature, method=method)


def taking(signature: inspect.Signature, *, method: bool = False) -> Callable[..., Any]:
    """A function of a signature; refuses what would not bind, as Python does."""
    if method:
        first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        signature = signature.replace(parameters=[first, *signature.parameters.values()])

    def call(*args: Any, **keywords: Any) -> Any:
        return SimpleNamespace(**signature.bind(*args, **keywords).arguments)

    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def _class(name: str, module: str, members: dict[str, Any]) -> type:
    return type(name, (), {"__module__": module, **members})


def _methods(surface: Surface, prefix: str, *names: str) -> dict[str, Any]:
    return {
        name: recorded_call(surface, f"{prefix}.{name}", method=True)
        for name in names
        if not surface.entry(f"{prefix}.{name}").missing
    }


def generator(surface: Surface) -> ModuleType:
    """The controller's module."""
    module = ModuleType(GENERATOR)
    for name, seam in _CONSTRUCTORS.items():
        setattr(module, name, recorded_call(surface, seam))
    scheduler = _methods(surface, "scheduler", "schedule", "finish_requests")
    scheduler["__init__"] = recorded_call(surface, "scheduler", method=True)
    executor = _methods(
        surface,
        "executor",
        *(["collective_rpc", "execute_model", "sample_tokens", "initialize_from_config"]),
        "compile_or_warm_up_model",
    )
    module.Scheduler = _class("Scheduler", "vllm.fake", scheduler)  # type: ignore[attr-defined]
    module.MultiprocExecutor = _class(  # type: ignore[attr-defined]
        "MultiprocExecutor", "vllm.fake", {"__init__": lambda self: None, **executor}
    )
    module.VllmHiddenStatesGenerator = _class(  # type: ignore[attr-defined]
        "VllmHiddenStatesGenerator",
        GENERATOR,
        {
            "__init__": lambda self: None,
            "_setup_capture": lambda self: "set up",
            "generate": lambda self, token_ids: token_ids,
        },
    )
    module.VLLM_BLOCK_SIZE = 16  # type: ignore[attr-defined]
    cuda = SimpleNamespace(mem_get_info=lambda *args: (1, 2), is_available=lambda: False)
    module.torch = SimpleNamespace(cuda=cuda, long="long")  # type: ignore[attr-defined]
    module.AutoTokenizer = SimpleNamespace(  # type: ignore[attr-defined]
        from_pretrained=lambda *args, **keywords: (args, keywords)
    )
    return module


def extension() -> ModuleType:
    """The worker's module."""
    module = ModuleType(EXTENSION)
    exec(_EXTENSION, module.__dict__)
    return module


_EXTENSION = """
def supports_eagle3(model): return False
def get_tp_group(): return rank
def _patched_forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
    raise AttributeError("get_input_embeddings")
class HiddenStatesWorkerExtension:
    _captured_states = None
    def _store_captured_states(self, aux): self._captured_states = [[h] for h in aux]
    def _setup_hidden_states_capture(self, layer_ids):
        if not supports_eagle3(self.model_runner.model): raise ValueError("does not support")
        self._layer_ids = frozenset(layer_ids)
        self.base = self.model_runner.model.model
    def _reset_capture(self): self._captured_states = None
    def _get_captured_states(self): return self._captured_states
"""


def cache_utils(surface: Surface) -> ModuleType:
    """Where 0.3.0 looks for what plans the cache, with what the release has there."""
    module = ModuleType(CACHE_UTILS)
    for seam in ("kv.groups-uniform", "kv.unify-hybrid", "kv.config-from-groups"):
        for path in surface.entry(seam).paths:
            place, _, name = path.partition(":")
            if place == CACHE_UTILS:
                setattr(module, name, recorded_call(surface, seam))
    return module


def configuration(*, version: int = 5) -> ModuleType:
    """transformers' module, as version 5 or 4 has it."""
    module = ModuleType(CONFIGURATION)
    annotations = {"dtype": "str | torch.dtype | None"} if version == 5 else {"base": "str"}
    module.PreTrainedConfig = type(  # type: ignore[attr-defined]
        "PreTrainedConfig", (), {"__annotations__": annotations}
    )
    return module


def libraries(monkeypatch: pytest.MonkeyPatch, *, version: int = 5) -> ModuleType:
    """Put stand-ins for torch and transformers where patches look; gives transformers' module."""
    module = configuration(version=version)
    monkeypatch.setitem(sys.modules, CONFIGURATION, module)
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    return module


def modules_of(surface: Surface) -> Modules:
    """All of them, as a patch is handed them."""
    return handed(generator(surface), extension(), configuration(), cache_utils(surface))


def handed(*modules: ModuleType) -> Modules:
    """Hand these modules and no others."""
    known = {module.__name__: module for module in modules}

    def give(name: str) -> ModuleType:
        if name not in known:
            raise ImportError(f"No module named {name!r}")
        return known[name]

    return give
