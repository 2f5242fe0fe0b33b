"""Try the INT4 stand-in's seam on the installed vLLM, whole and broken; print facts as JSON."""

from __future__ import annotations

import importlib
import json
from typing import Any

import torch

from harness.errors import HarnessError
from harness.inside import int4_cpu


def failure() -> str:
    try:
        int4_cpu.install()
    except HarnessError as error:
        return f"{error.failure.id}: {error.failure.found}"
    return "installed"


def main() -> None:
    from vllm.platforms import current_platform

    found: dict[str, Any] = {}
    seam = int4_cpu.probe()
    found["problems"] = seam.problems
    assert seam.original is not None
    module, name = seam.places[0]
    original = seam.original

    platform = type(current_platform)
    is_cpu = platform.is_cpu
    platform.is_cpu = lambda self: False
    found["elsewhere"] = failure()
    platform.is_cpu = is_cpu

    create = original.create_weights
    original.create_weights = lambda self, module, **sizes: None
    found["other signature"] = failure()
    original.create_weights = create

    for place, method in seam.places:
        delattr(place, method)
    found["no method"] = failure()
    for place, method in seam.places:
        setattr(place, method, original)

    unquantised = importlib.import_module(seam.unquantised.__module__)
    saved = unquantised.UnquantizedFusedMoEMethod
    del unquantised.UnquantizedFusedMoEMethod
    found["no unquantised"] = failure()
    unquantised.UnquantizedFusedMoEMethod = saved
    found["untouched"] = getattr(module, name) is original

    found["first"] = failure()
    replaced = getattr(module, name)
    found["second"] = failure()
    found["once"] = getattr(module, name) is replaced and replaced is not original
    found["name"] = replaced.__name__

    generator = torch.Generator().manual_seed(0)
    packed = torch.randint(-(2**31), 2**31 - 1, (2, 6, 8), generator=generator).to(torch.int32)
    scale = torch.rand(2, 6, 2, generator=generator)
    flat = int4_cpu.dequantise(packed, scale, k_first=False)
    turned = int4_cpu.dequantise(packed.transpose(1, 2), scale.transpose(1, 2), k_first=True)
    found["layouts agree"] = torch.equal(flat, turned)
    code = (int(packed[1, 4, 5]) >> 12) & 0xF
    found["one value"] = [float(flat[1, 4, 43]), (code - 8) * float(scale[1, 4, 1])]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
