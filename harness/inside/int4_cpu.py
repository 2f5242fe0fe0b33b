"""INT4 experts on a CPU: vLLM's own parameters and loader, dequantised after the load.

vLLM's x86 kernel for compressed-tensors WNA16 experts needs AMX, computes in bfloat16 and
knows no ``noaux_tc`` routing, so a Kimi-shaped INT4 checkpoint does not load on most CPUs
(0.32: "No WNA16 MoE backend supports the deployment configuration"; 0.16:
``gptq_marlin_repack`` is missing). The stand-in takes the place of the method class
only. Names, packing, scales, shards and the ignore list are still vLLM's; the unpacking and
the product are not, so this tests everything about INT4 but the kernel.

Its reference is the dequantised twin of the checkpoint (``int4-twin``): the two hold the same
numbers.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from harness.errors import Refused

_PACKAGE = "vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe"
_UNQUANTISED = "vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method"
_METHOD = "CompressedTensorsWNA16MoEMethod"
# 0.16 to 0.25 have a second class for Marlin and choose it by shape; 0.28 has one.
_METHODS = (_METHOD, "CompressedTensorsWNA16MarlinMoEMethod")
_MODULES = ("compressed_tensors_moe_wna16", "compressed_tensors_moe_wna16_marlin")
_SELECTORS = ("select_wna16_moe_backend",)
_MARK = "_harness_int4_stand_in"
_PARAMETERS = (
    "weight_packed",
    "weight_scale",
    "weight_shape",
    "weight_g_idx",
    "g_idx_sort_indices",
)


@dataclass(frozen=True)
class Seam:
    """What of the installed vLLM the stand-in holds on to.

    Attributes:
        original: vLLM's method class for WNA16 experts.
        unquantised: vLLM's method class for experts in floating point.
        places: (module, name) pairs by which vLLM reaches the method classes.
        problems: What is not as needed; empty where the stand-in fits.
    """

    original: type[Any] | None
    unquantised: type[Any] | None
    places: tuple[tuple[ModuleType, str], ...]
    problems: tuple[str, ...]


def probe() -> Seam:
    """Look at the seam in the installed vLLM, changing nothing.

    Returns:
        The classes and places found, and what is missing.
    """
    problems: list[str] = []
    places = tuple(_places())
    originals = [getattr(module, name) for module, name in places if name == _METHOD]
    original = next((o for o in originals if not hasattr(o, _MARK)), None)
    if not originals:
        problems.append(f"no {_METHOD} under {_PACKAGE}")
    elif original is not None:
        problems += _unlike(original, "__init__", ("weight_quant", "input_quant", "moe"))
        problems += _unlike(
            original,
            "create_weights",
            ("layer", "num_experts", "hidden_size", "intermediate_size_per_partition"),
        )
    unquantised = _unquantised()
    if unquantised is None:
        problems.append(f"no UnquantizedFusedMoEMethod in {_UNQUANTISED}")
    else:
        problems += _unlike(unquantised, "__init__", ("moe",))
        problems += _unlike(unquantised, "process_weights_after_loading", ("layer",))
    return Seam(original, unquantised, places, tuple(problems))


def install() -> None:
    """Put the stand-in where vLLM looks up its INT4 expert method.

    Call it in the worker's process before the model is built. A second call changes nothing.

    Raises:
        Refused: ``int4-cpu.not-a-cpu`` on another platform, ``int4-cpu.no-seam`` when the
            installed vLLM has not the classes that the stand-in needs.
    """
    _require_cpu()
    seam = probe()
    if seam.problems:
        raise Refused(
            "int4-cpu.no-seam",
            expected=f"vLLM's {_METHOD} with packed parameters and an unquantised CPU method",
            found="; ".join(seam.problems),
            where=f"vLLM {_version()}",
            next="run the dequantised twin (int4-twin) of the model, or another vLLM release",
        )
    if seam.original is None:
        return  # already in place
    stand_in = _stand_in(seam.original, seam.unquantised)
    for module, name in seam.places:
        setattr(module, name, stand_in)


def dequantise(packed: torch.Tensor, scale: torch.Tensor, *, k_first: bool) -> torch.Tensor:
    """Return the weights that packed INT4 experts stand for.

    Args:
        packed: int32 ``[experts, out, in / 8]``; ``[experts, in / 8, out]`` where ``k_first``.
        scale: Floating point ``[experts, out, groups]``; ``[experts, groups, out]`` where
            ``k_first``.
        k_first: Whether inputs come before outputs (vLLM 0.16 to 0.28).

    Returns:
        float32 ``[experts, out, in]``: (code - 8) times its group's scale, exact where the
        scale is a bfloat16 value.
    """
    if k_first:
        packed, scale = packed.transpose(1, 2), scale.transpose(1, 2)
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    codes = (packed.contiguous().unsqueeze(-1) >> shifts) & 0xF
    experts, out_features, words = packed.shape
    groups = (codes.to(torch.float32) - 8).view(experts, out_features, scale.shape[2], -1)
    weights = groups * scale.to(torch.float32).unsqueeze(-1)
    return weights.reshape(experts, out_features, 8 * words)


def _stand_in(original: type[Any], unquantised: Any) -> type[Any]:
    class CompressedTensorsWNA16MoEMethod(unquantised):  # type: ignore[misc]
        """vLLM's INT4 expert method, computing in floating point (harness stand-in)."""

        # vLLM's loader asks for the class by this very name to know packed weights.

        def __init__(
            self, weight_quant: Any, input_quant: Any, moe: Any, layer_name: str | None = None
        ) -> None:
            super().__init__(moe)
            _require_plain_int4(weight_quant)
            self._hs_packed = _packed_method(original, weight_quant, input_quant, moe)

        def create_weights(
            self,
            layer: torch.nn.Module,
            num_experts: int,
            hidden_size: int,
            intermediate_size_per_partition: int,
            params_dtype: torch.dtype,
            **extra: Any,
        ) -> None:
            self._hs_dtype = params_dtype
            self._hs_packed.create_weights(
                layer,
                num_experts,
                hidden_size,
                intermediate_size_per_partition,
                params_dtype,
                **extra,
            )

        def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
            for half in ("w13", "w2"):
                packed = getattr(layer, f"{half}_weight_packed")
                weights = dequantise(
                    packed.data,
                    getattr(layer, f"{half}_weight_scale").data,
                    k_first=bool(getattr(packed, "is_transposed", False)),
                ).to(self._hs_dtype)
                for name in _PARAMETERS:
                    if hasattr(layer, f"{half}_{name}"):
                        delattr(layer, f"{half}_{name}")
                layer.register_parameter(
                    f"{half}_weight", torch.nn.Parameter(weights, requires_grad=False)
                )
            super().process_weights_after_loading(layer)

    setattr(CompressedTensorsWNA16MoEMethod, _MARK, True)
    return CompressedTensorsWNA16MoEMethod


def _packed_method(original: type[Any], weight_quant: Any, input_quant: Any, moe: Any) -> Any:
    """Build vLLM's own method for the sake of its parameters, without choosing a kernel."""
    with _no_kernel_choice(original):
        return original(weight_quant, input_quant, moe)


@contextmanager
def _no_kernel_choice(original: type[Any]) -> Iterator[None]:
    # From 0.28 on the constructor asks for a kernel, and none fits a plain CPU.
    module = sys.modules[original.__module__]
    saved = {name: getattr(module, name) for name in _SELECTORS if hasattr(module, name)}
    try:
        for name in saved:
            setattr(module, name, lambda *_args, **_kwargs: (None, None))
        yield
    finally:
        for name, value in saved.items():
            setattr(module, name, value)


def _require_plain_int4(weight_quant: Any) -> None:
    bits = getattr(weight_quant, "num_bits", None)
    symmetric = getattr(weight_quant, "symmetric", None)
    actorder = getattr(weight_quant, "actorder", None)
    if bits == 4 and symmetric and not actorder:
        return
    raise Refused(
        "int4-cpu.other-scheme",
        expected="4 bits, symmetric, without activation order, as Kimi-K2.5's experts",
        found=f"{bits} bits, symmetric {symmetric}, activation order {actorder}",
        where="quantization_config of the checkpoint",
        next="run the dequantised checkpoint on the CPU",
    )


def _places() -> Iterator[tuple[ModuleType, str]]:
    """Yield where the method classes are reached: one module in 0.16, a package of them later."""
    for name in (_PACKAGE, *(f"{_PACKAGE}.{part}" for part in _MODULES)):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        for method in _METHODS:
            if isinstance(vars(module).get(method), type):
                yield module, method


def _unquantised() -> type[Any] | None:
    try:
        found = getattr(importlib.import_module(_UNQUANTISED), "UnquantizedFusedMoEMethod", None)
    except ImportError:
        return None
    return found if isinstance(found, type) else None


def _unlike(owner: type[Any], method: str, needed: tuple[str, ...]) -> list[str]:
    """Say how a method's parameters fail to begin as the stand-in calls them."""
    function = getattr(owner, method, None)
    if function is None:
        return [f"{owner.__name__} has no {method}"]
    names = [name for name in inspect.signature(function).parameters if name != "self"]
    if tuple(names[: len(needed)]) == needed:
        return []
    return [f"{owner.__name__}.{method} takes {', '.join(names)}; needed {', '.join(needed)}"]


def _require_cpu() -> None:
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        return
    raise Refused(
        "int4-cpu.not-a-cpu",
        expected="a CPU build of vLLM",
        found=str(getattr(current_platform, "device_name", type(current_platform).__name__)),
        where="harness.inside.int4_cpu",
        next="leave the stand-in out: on this platform vLLM has its own INT4 kernels",
    )


def _version() -> str:
    import vllm

    return str(getattr(vllm, "__version__", "unknown"))
