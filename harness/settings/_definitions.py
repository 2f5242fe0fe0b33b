"""Every setting as users meet it: name, value, help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from harness.errors import UsageError
from harness.settings._readers import (
    BadValue,
    read_flag,
    read_lease,
    read_path,
    read_program,
    read_seconds,
    read_share,
    read_text,
    read_whole,
)

Reader = Callable[[str, Path], Any]

TINY_LAYERS: Final = "1,3,4"
"""Layers for the tiny model, in which the presets' points would fall together."""


@dataclass(frozen=True)
class Definition:
    """One setting as users meet it.

    Attributes:
        name: Its name in :class:`Settings`.
        read: Turns a text and the folder that a relative path starts from into a value.
        metavar: What stands for a value in help texts; empty for a flag.
        help: What it means, and its default.
        bare: What the option says without a value; empty where it needs one.
    """

    name: str
    read: Reader
    metavar: str
    help: str
    bare: str = ""

    @property
    def option(self) -> str:
        """The option of the pytest plugin, such as ``--hs-load-deadline``."""
        return "--hs-" + self.name.replace("_", "-")

    @property
    def ini(self) -> str:
        """The key in pytest's ini file, such as ``hs_load_deadline``."""
        return f"hs_{self.name}"

    @property
    def variable(self) -> str:
        """The environment variable, such as ``HARNESS_LOAD_DEADLINE``."""
        return f"HARNESS_{self.name.upper()}"

    def parse(self, text: str, *, where: str, base: Path) -> Any:
        """Read a value.

        Raises:
            UsageError: ``settings.bad-value``, with ``where`` it stands.
        """
        try:
            return self.read(text, base)
        except BadValue as error:
            raise UsageError(
                "settings.bad-value",
                expected=str(error),
                found=repr(text),
                where=where,
                next=f"{self.option}: {self.help}",
            ) from None


_DEFINITIONS: Final = (
    Definition(
        "model",
        read_path,
        "DIR",
        "checkpoint folder; default: a tiny Kimi-K2.5, made for the session",
    ),
    Definition(
        "layers",
        read_text,
        "IDS",
        "layer ids such as 2,30,58, or a preset; "
        "default: speculators-0.9, ids where a model has too few layers for it, "
        f"{TINY_LAYERS} for the tiny model",
    ),
    Definition(
        "dialect",
        read_text,
        "NAME",
        "how the layer ids count: vllm, speculators-gen1, hf, sglang or modelopt; default: vllm",
    ),
    Definition(
        "layout",
        read_text,
        "NAME",
        "training (depth L is the last column) or raw (as asked); default: training",
    ),
    Definition(
        "capture",
        read_text,
        "NAME",
        "how hidden states are taken: native, patched or auto; default: auto",
    ),
    Definition(
        "dtype", read_text, "NAME", "auto (the checkpoint's), float32 or bfloat16; default: auto"
    ),
    Definition("tensor_parallel_size", read_whole, "N", "workers that share the model; default: 1"),
    Definition(
        "max_model_len",
        read_whole,
        "N",
        "longest request in tokens, its one output token included; "
        "default: 1024, or the model's own limit where that is less",
    ),
    Definition(
        "max_num_batched_tokens",
        read_whole,
        "N",
        "tokens of one scheduler step; default: chosen by the recipe",
    ),
    Definition(
        "gpu_memory_utilization", read_share, "SHARE", "share of each GPU's memory; default: 0.85"
    ),
    Definition(
        "python",
        read_program,
        "PYTHON",
        "interpreter that has vLLM; default: the one that runs pytest",
    ),
    Definition(
        "prompts",
        read_path,
        "FILE",
        "prompts of the `extraction` fixture; default: those that come with the harness",
    ),
    Definition(
        "out",
        read_path,
        "DIR",
        "folder for the dataset of the `extraction` fixture; default: a temporary one",
    ),
    Definition(
        "preflight_skip",
        read_text,
        "CHECKS",
        "checks of `clean_gpus` to leave out, by id or family, parted by commas; all: load "
        "without a look; default: none",
    ),
    Definition(
        "skip_gate",
        read_flag,
        "",
        "load a vLLM also where its files show that the capture cannot work with it",
    ),
    Definition(
        "rehearse",
        read_flag,
        "",
        "before the load, do the job once with the model's first 4 layers at full width: "
        "workers, kernels, cache, canary, disk",
    ),
    Definition(
        "attach",
        read_lease,
        "NAME",
        "use an engine that `harness engine start` keeps: its name, or auto for the only one; "
        "default: no, the session loads its own",
        bare="auto",
    ),
    Definition(
        "baselines",
        read_path,
        "DIR",
        "folder with recorded speeds of your own, stronger than those that come along",
    ),
    Definition(
        "record_baseline",
        read_path,
        "DIR",
        "write what the session measures as new baselines into DIR, where every test passed",
    ),
    Definition(
        "require_engine",
        read_flag,
        "",
        "fail, instead of skipping, where vLLM is missing; fail where no engine test ran",
    ),
    Definition(
        "require_gpu",
        read_flag,
        "",
        "fail, instead of skipping, where GPUs are missing; fail where no GPU test ran",
    ),
    Definition(
        "start_deadline",
        read_seconds,
        "S",
        "seconds until the engine's process answers; default: 60",
    ),
    Definition(
        "load_deadline", read_seconds, "S", "seconds for the load of the model; default: 2400"
    ),
    Definition(
        "first_batch_deadline",
        read_seconds,
        "S",
        "seconds for the canary, and for the first batch of prompts; default: 1800",
    ),
    Definition(
        "batch_deadline",
        read_seconds,
        "S",
        "seconds for one batch of prompts; default: 1800",
    ),
    Definition(
        "files_deadline",
        read_seconds,
        "S",
        "seconds from a batch's last forward pass to its files; default: 120",
    ),
    Definition(
        "shutdown_deadline", read_seconds, "S", "seconds for the engine's orderly end; default: 30"
    ),
    Definition(
        "stall_deadline",
        read_seconds,
        "S",
        "seconds without a log line, CPU, storage or GPU use after which an engine is hung; "
        "default: 300",
    ),
    Definition(
        "supervise",
        read_text,
        "POLICY",
        "what to do about an engine that cannot succeed: DANGER=ACTION,... with the dangers "
        "line, stall, memory, shm and code, and the actions kill, warn and off; "
        "default: kill,code=warn",
    ),
)


def definitions() -> tuple[Definition, ...]:
    """Return every setting, in the order in which they are shown."""
    return _DEFINITIONS
