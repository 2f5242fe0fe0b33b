"""What a user may set, resolved once into one frozen object.

Order: command line, then environment (``HARNESS_*``), then ini file, then default. The source
of every value is kept, so that whoever shows the values can say where each one came from.
Standard library only. That a path exists is checked where it is used: a setting for the box
must not stop the unit tests on a laptop.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from harness.errors import UsageError

Reader = Callable[[str, Path], Any]

COMMAND_LINE: Final = "command line"
ENVIRONMENT: Final = "environment"
INI: Final = "ini"
LEASE: Final = "lease"
DEFAULT: Final = "default"
SOURCES: Final = (COMMAND_LINE, ENVIRONMENT, INI, LEASE, DEFAULT)
"""Where a value may come from, strongest first."""

TINY_LAYERS: Final = "1,3,4"
"""Layers for the tiny model, in which the presets' points would fall together."""

_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


class BadValue(Exception):
    """A text that does not say a value; the message says what would."""


def _text(text: str, base: Path) -> str:
    if not text.strip():
        raise BadValue("a value")
    return text.strip()


def _path(text: str, base: Path) -> Path:
    return base / Path(_text(text, base)).expanduser()


def _program(text: str, base: Path) -> Path:
    if "/" in text:
        return _path(text, base)
    found = shutil.which(_text(text, base))
    if found is None:
        raise BadValue("a path, or the name of a program on PATH")
    return Path(found)


def _whole(text: str, base: Path) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise BadValue("a whole number of 1 or more")
    return int(text)


def _seconds(text: str, base: Path) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise BadValue("a number of seconds above 0")
    return value


def _share(text: str, base: Path) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise BadValue("a share above 0 and at most 1")
    return value


def _lease(text: str, base: Path) -> str | None:
    word = text.strip()
    if word.lower() in _NO:
        return None
    if word.lower() in _YES:
        return "auto"
    if not word or "/" in word:
        raise BadValue("the name of a lease, auto for the only one, or no")
    return word


def _flag(text: str, base: Path) -> bool:
    word = text.strip().lower()
    if word not in (*_YES, *_NO):
        raise BadValue("yes or no")
    return word in _YES


@dataclass(frozen=True)
class Settings:
    """Every setting of the pytest plugin, with its default; :func:`definitions` says what it means.

    ``sources`` maps the name of each setting that was given to where its value came from.
    """

    model: Path | None = None
    layers: str = "speculators-0.9"
    dialect: str = "vllm"
    layout: str = "training"
    capture: str = "auto"
    dtype: str = "auto"
    tensor_parallel_size: int = 1
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float = 0.85
    python: Path = Path(sys.executable)
    prompts: Path | None = None
    out: Path | None = None
    preflight_skip: str = "none"
    skip_gate: bool = False
    rehearse: bool = False
    attach: str | None = None
    baselines: Path | None = None
    record_baseline: Path | None = None
    require_engine: bool = False
    require_gpu: bool = False
    start_deadline: float = 60.0
    load_deadline: float = 2400.0
    first_batch_deadline: float = 1800.0
    batch_deadline: float = 1800.0
    files_deadline: float = 120.0
    shutdown_deadline: float = 30.0
    stall_deadline: float = 300.0
    supervise: str = "kill,code=warn"
    sources: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType({}), compare=False, repr=False
    )

    def source(self, name: str) -> str:
        """Return where the value of a setting came from, one of :data:`SOURCES`."""
        return self.sources.get(name, DEFAULT)

    def explain(self) -> list[str]:
        """Return one line for each source that gave a value: ``source: name=value ...``."""
        lines = []
        for source in SOURCES:
            names = [s.name for s in definitions() if self.source(s.name) == source]
            shown = [f"{name}={_show(getattr(self, name))}" for name in names]
            if shown:
                lines.append(f"{source}: " + " ".join(shown))
        return lines


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
        _path,
        "DIR",
        "checkpoint folder; default: a tiny Kimi-K2.5, made for the session",
    ),
    Definition(
        "layers",
        _text,
        "IDS",
        "layer ids such as 2,30,58, or a preset; "
        f"default: speculators-0.9, for the tiny model {TINY_LAYERS}",
    ),
    Definition(
        "dialect",
        _text,
        "NAME",
        "how the layer ids count: vllm, speculators-gen1, hf, sglang or modelopt; default: vllm",
    ),
    Definition(
        "layout",
        _text,
        "NAME",
        "training (depth L is the last column) or raw (as asked); default: training",
    ),
    Definition(
        "capture",
        _text,
        "NAME",
        "how hidden states are taken: native, patched or auto; default: auto",
    ),
    Definition(
        "dtype", _text, "NAME", "auto (the checkpoint's), float32 or bfloat16; default: auto"
    ),
    Definition("tensor_parallel_size", _whole, "N", "workers that share the model; default: 1"),
    Definition(
        "max_model_len",
        _whole,
        "N",
        "longest request in tokens, its one output token included; "
        "default: 1024, or the model's own limit where that is less",
    ),
    Definition(
        "max_num_batched_tokens",
        _whole,
        "N",
        "tokens of one scheduler step; default: chosen by the recipe",
    ),
    Definition(
        "gpu_memory_utilization", _share, "SHARE", "share of each GPU's memory; default: 0.85"
    ),
    Definition(
        "python",
        _program,
        "PYTHON",
        "interpreter that has vLLM; default: the one that runs pytest",
    ),
    Definition(
        "prompts",
        _path,
        "FILE",
        "prompts of the `extraction` fixture; default: those that come with the harness",
    ),
    Definition(
        "out",
        _path,
        "DIR",
        "folder for the dataset of the `extraction` fixture; default: a temporary one",
    ),
    Definition(
        "preflight_skip",
        _text,
        "CHECKS",
        "checks of `clean_gpus` to leave out, by id or family, parted by commas; all: load "
        "without a look; default: none",
    ),
    Definition(
        "skip_gate",
        _flag,
        "",
        "load a vLLM also where its files show that the capture cannot work with it",
    ),
    Definition(
        "rehearse",
        _flag,
        "",
        "before the load, do the job once with the model's first 4 layers at full width: "
        "workers, kernels, cache, canary, disk",
    ),
    Definition(
        "attach",
        _lease,
        "NAME",
        "use an engine that `harness engine start` keeps: its name, or auto for the only one; "
        "default: no, the session loads its own",
        bare="auto",
    ),
    Definition(
        "baselines",
        _path,
        "DIR",
        "folder with recorded speeds of your own, stronger than those that come along",
    ),
    Definition(
        "record_baseline",
        _path,
        "DIR",
        "write what the session measures as new baselines into DIR, where every test passed",
    ),
    Definition(
        "require_engine",
        _flag,
        "",
        "fail, instead of skipping, where vLLM is missing; fail where no engine test ran",
    ),
    Definition(
        "require_gpu",
        _flag,
        "",
        "fail, instead of skipping, where GPUs are missing; fail where no GPU test ran",
    ),
    Definition(
        "start_deadline", _seconds, "S", "seconds until the engine's process answers; default: 60"
    ),
    Definition("load_deadline", _seconds, "S", "seconds for the load of the model; default: 2400"),
    Definition(
        "first_batch_deadline",
        _seconds,
        "S",
        "seconds for the canary, and for the first batch of prompts; default: 1800",
    ),
    Definition(
        "batch_deadline",
        _seconds,
        "S",
        "seconds for one batch of prompts; default: 1800",
    ),
    Definition(
        "files_deadline",
        _seconds,
        "S",
        "seconds from a batch's last forward pass to its files; default: 120",
    ),
    Definition(
        "shutdown_deadline", _seconds, "S", "seconds for the engine's orderly end; default: 30"
    ),
    Definition(
        "stall_deadline",
        _seconds,
        "S",
        "seconds without a log line, CPU, storage or GPU use after which an engine is hung; "
        "default: 300",
    ),
    Definition(
        "supervise",
        _text,
        "POLICY",
        "what to do about an engine that cannot succeed: DANGER=ACTION,... with the dangers "
        "line, stall, memory, shm and code, and the actions kill, warn and off; "
        "default: kill,code=warn",
    ),
)


def definitions() -> tuple[Definition, ...]:
    """Return every setting, in the order in which they are shown."""
    return _DEFINITIONS


def resolve(
    *,
    command_line: Mapping[str, str | None],
    environment: Mapping[str, str],
    ini: Mapping[str, str | None],
    here: Path,
    ini_file: Path | None = None,
) -> Settings:
    """Resolve every setting.

    Args:
        command_line: Setting name to the text given there; None or missing: not given.
        environment: The process's environment; an empty variable counts as not set.
        ini: Setting name to the text in the ini file.
        here: Where relative paths of command line and environment start.
        ini_file: The ini file, for messages; its relative paths start in its folder.

    Raises:
        UsageError: ``settings.bad-value``.
    """
    ini_base = ini_file.parent if ini_file else here
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for setting in definitions():
        name = setting.name
        given = (
            (COMMAND_LINE, command_line.get(name), setting.option, here),
            (ENVIRONMENT, environment.get(setting.variable) or None, setting.variable, here),
            (INI, ini.get(name), f"{setting.ini} in {ini_file or 'the ini file'}", ini_base),
        )
        for source, text, where, base in given:
            if text is not None:
                values[name] = setting.parse(text, where=where, base=base)
                sources[name] = source
                break
    if "layers" not in values and values.get("model") is None:
        values["layers"] = TINY_LAYERS
    return Settings(**values, sources=MappingProxyType(sources))


def _show(value: Any) -> str:
    if value is None:
        return "auto"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return shlex.quote(str(value))
