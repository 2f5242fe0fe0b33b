"""What stays of a payload: files, and the device code of each library, by architecture.

Read from vLLM 0.26.0's wheel, most of which is device code for other GPUs. What stays serves
Kimi-K2.5 and models like it in bfloat16 with INT4 experts. A model that needs more gets CUDA's
"no kernel image" error, and this is the file to add it to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fatbins import IMAGE, PTX, Entry
from toolbox import Toolbox

Keep = Callable[[tuple[Entry, ...]], bytes]

# Attention as (element type, head size of keys, head size of values): two usual sizes, and MLA's
# prefill and decode.
_ATTENTION = frozenset(
    {
        ("bfloat16_t", 64, 64),
        ("bfloat16_t", 128, 128),
        ("bfloat16_t", 192, 128),
        ("bfloat16_t", 64, 512),
    }
)
_KERNEL_NAME = re.compile(rb"\.text\.(_Z\w+)")
_HEAD_SIZES = re.compile(
    r"cute::tuple<cute::C<\d+>, cute::C<\d+>, cute::C<(\d+)> >, (\d+), cutlass::(\w+),"
)
_ENTRY_POINT = re.compile(rb"\.entry (\w+)")
# vLLM writes the types of a Marlin kernel as the numbers of its ScalarType.
_HALF, _BF16, _INT4 = "1125899906910725l", "1125899906909960l", "1125899907892224l"
_MARLIN_HALF = re.compile(rf"Marlin<({_HALF}|[^,>]*, [^,>]*, {_HALF})")
_MARLIN_EXPERTS = f"marlin_moe_wna16::Marlin<{_BF16}, {_INT4}"


@dataclass(frozen=True)
class Choice:
    """What stays for one architecture.

    Attributes:
        arch: Compute capability: 90 for ``sm_90``.
        dropped: Files and folders of the payload that are left out.
        trimmed: Libraries whose device code is cut, each with the rule that cuts it.
    """

    arch: int
    dropped: tuple[str, ...]
    trimmed: Mapping[str, Callable[[Toolbox, int], Keep]]


def native_or_ptx(tools: Toolbox, arch: int) -> Keep:
    """Keep images of ``arch``; where a fat binary has none, what makes one.

    Marlin comes as PTX for older architectures only, which each new process would compile for
    half a minute: the kernel of INT4 experts is compiled here, the small others stay PTX.
    Marlin in half precision and PTX of FP8's sm_89 are left out.
    """
    nothing = tools.nothing()

    def keep(entries: tuple[Entry, ...]) -> bytes:
        images = [one for one in entries if (one.kind, one.arch) == (IMAGE, arch)]
        if images:
            return b"".join(one.raw for one in images)
        texts = [one for one in entries if one.kind == PTX and one.arch <= arch]
        newest = max(texts, key=lambda one: one.arch, default=None)
        if newest is None or newest.arch == 89:
            return nothing
        text = tools.decompress(newest.code)
        entry_point = _ENTRY_POINT.search(text)
        name = tools.demangle([entry_point[1]]) if entry_point else ""
        if _MARLIN_HALF.search(name):
            return nothing
        return tools.assemble(text, arch) if _MARLIN_EXPERTS in name else newest.raw

    return keep


def attention(tools: Toolbox, arch: int) -> Keep:
    """Keep those images of ``arch`` that attend in bfloat16 with a wanted head size."""
    nothing = tools.nothing()

    def wanted(image: bytes) -> bool:
        names = tools.demangle(sorted(set(_KERNEL_NAME.findall(image))))
        kinds = {(kind, int(k), int(v)) for k, v, kind in _HEAD_SIZES.findall(names)}
        # An image without any such kernel is a helper of all of them.
        return not kinds or bool(kinds & _ATTENTION)

    def keep(entries: tuple[Entry, ...]) -> bytes:
        images = [one for one in entries if (one.kind, one.arch) == (IMAGE, arch)]
        return b"".join(one.raw for one in images if wanted(one.code)) or nothing

    return keep


CHOICES: Mapping[int, Choice] = {
    90: Choice(
        arch=90,
        dropped=(
            "vllm/vllm-rs",
            "vllm/third_party/deep_gemm",
            "vllm/third_party/fmha_sm100",
            "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so",
            "vllm/_qutlass_C.abi3.so",
            "pycountry/locales",
            "mistral_common/data",
        ),
        trimmed={
            "vllm/_C_stable_libtorch.abi3.so": native_or_ptx,
            "vllm/_moe_C_stable_libtorch.abi3.so": native_or_ptx,
            "vllm/_flashmla_C.abi3.so": native_or_ptx,
            "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so": attention,
        },
    )
}
_NOWHERE_WANTED = frozenset({"tests", "__pycache__"})


def stays(name: str, choice: Choice) -> bool:
    """Say whether a file of the payload is packed, by its path."""
    if _NOWHERE_WANTED.intersection(name.split("/")[:-1]):
        return False
    return not any(name == drop or name.startswith(drop + "/") for drop in choice.dropped)
