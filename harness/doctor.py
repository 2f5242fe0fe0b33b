"""What can run here, and why not: cheap checks before any load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from harness import models
from harness.dataset.conversations import TokeniserHost
from harness.engine_facts import Inspection, inspect
from harness.errors import HarnessError
from harness.extraction import EngineOptions
from harness.extraction.plan import EnginePlan, plan_engine
from harness.host import Host, HostSpec

State = Literal["ok", "note", "fail"]


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: What.
        state: ``ok``, ``note`` (worth knowing, stops nothing) or ``fail``.
        found: What was found, in one sentence.
        next: What to do about it; empty when nothing.
    """

    name: str
    state: State
    found: str
    next: str = ""

    def to_json(self) -> dict[str, str]:
        """Return the check as a flat JSON object."""
        return asdict(self)


def examine(
    options: EngineOptions | None, *, python: Path, scratch: Path, trust_remote_code: bool = False
) -> Iterator[Check]:
    """Look at the interpreter and, where one is named, at a model for it.

    Args:
        options: The model and how it would be loaded; None looks at the machine only.
        python: Interpreter that should have vLLM.
        scratch: Folder for logs.
        trust_remote_code: Let the checkpoint's tokenizer code run.

    Yields:
        Checks, cheapest first; a failed one ends those that depend on it.
    """
    try:
        seen = inspect(python)
    except HarnessError as error:
        yield _failed("interpreter", error)
        return
    yield from _machine(seen)
    if options is None:
        return
    try:
        model = models.read(options.model)
    except HarnessError as error:
        yield _failed("model", error)
        return
    yield Check(
        "model",
        "ok",
        f"{model.architecture}, {model.num_layers} layers, hidden {model.hidden_size}, "
        f"vocabulary {model.vocab_size}, {model.quantization or model.dtype}",
    )
    yield _guarded("shards", lambda: models.check_shards(options.model))
    yield from _tokenizer(options.model, python, scratch, trust_remote_code)
    try:
        plan = plan_engine(options, longest_prompt=None, spool=scratch / "spool")
    except HarnessError as error:
        yield _failed("recipe", error)
        return
    yield Check("capture", "ok", f"{plan.session.name}: {plan.why}")
    yield Check(
        "recipe", "ok", f"{len(plan.recipe.settings)} settings; extract --dry-run shows each"
    )
    if plan.recipe.engine_args.get("trust_remote_code") and not trust_remote_code:
        yield Check(
            "code of the checkpoint",
            "fail",
            "this vLLM runs it for the image processor's sizes, even for text",
            "read the checkpoint's *.py files, then add --trust-remote-code; or a newer vLLM",
        )
    yield _configuration(plan, scratch)


def _machine(seen: Inspection) -> Iterator[Check]:
    engine, platform = seen.engine, seen.platform
    yield Check("interpreter", "ok", f"Python {seen.python} at {seen.executable}")
    if engine.vllm is None:
        yield Check("engine", "fail", "no vLLM in it", "install vllm, or name another --python")
        return
    others = ", ".join(f"{k} {v}" for k, v in engine.versions.items() if k != engine.dist)
    yield Check("engine", "ok", f"{engine.dist} {engine.vllm}; {others}")
    native = engine.has("native_extract")
    yield Check(
        "native capture",
        "ok" if native else "note",
        "extract_hidden_states is there"
        if native
        else "no extract_hidden_states: the patched capture takes its place",
    )
    if platform.device == "cpu":
        yield Check(
            "device",
            "note",
            f"CPU, {platform.cores} cores; tiny models only",
            "tests marked gpu need a GPU and a CUDA build of vLLM",
        )
    else:
        yield Check("device", "ok", f"{platform.gpus} NVIDIA GPUs")


def _tokenizer(model: Path, python: Path, scratch: Path, trust: bool) -> Iterator[Check]:
    try:
        # The child has no standard input, so a question for consent cannot hang.
        with TokeniserHost(python, scratch / "tokenizer.log") as host:
            facts = host.describe(model, trust_remote_code=trust)
    except HarnessError as error:
        yield _failed("tokenizer", error)
        return
    if not facts["loads"]:
        way = "--trust-remote-code, if you trust it" if facts["needs_remote_code"] else ""
        found = f"does not load: {facts['problem']}"
        yield Check("tokenizer", "note", found, way or "prompts as token ids work without it")
        return
    template = "with a chat template" if facts["chat_template"] else "without a chat template"
    yield Check("tokenizer", "ok", f"{facts['class']}, {facts['vocab_size']} ids, {template}")
    if facts["placeholder_ids"]:
        named = ", ".join(f"{name} = {token}" for name, token in facts["placeholder_ids"].items())
        yield Check("placeholder ids", "note", named, "prompts that hold them are refused")


def _configuration(plan: EnginePlan, scratch: Path) -> Check:
    """Let the installed vLLM build its own configuration for this model."""
    log = scratch / "configure.log"
    spec = HostSpec(
        python=plan.options.python, module="harness.inside.engine", env=plan.recipe.env, log=log
    )
    params = {"engine_args": plan.session.engine_args, "expect": plan.session.expect}
    try:
        with Host(spec) as host:
            reply = host.call("configure", params, deadline_s=300.0)
    except HarnessError as error:
        return _failed("engine configuration", error)
    if reply["problem"]:
        return Check(
            "engine configuration", "fail", reply["problem"], "this vLLM refuses the model"
        )
    changed = [
        f"{name} is {reply['resolved'][name]}, not {value}"
        for name, value in plan.session.expect.items()
        if reply["resolved"][name] != str(value)
    ]
    if changed:
        return Check("engine configuration", "fail", "; ".join(changed), "report this release")
    count = len(plan.session.expect)
    return Check("engine configuration", "ok", f"vLLM builds it and keeps all {count} settings")


def _guarded(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, "ok", look())
    except HarnessError as error:
        return _failed(name, error)


def _failed(name: str, error: HarnessError) -> Check:
    failure = error.failure
    found = f"{failure.found} ({failure.where}); expected {failure.expected}"
    return Check(name, "fail", found, failure.next)
