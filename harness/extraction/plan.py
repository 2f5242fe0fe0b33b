"""Everything that can be known before the load is known here, and refused here."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness import models, recipe
from harness.capture.session import SessionSpec
from harness.dataset.folder import admit
from harness.dataset.prompt_set import PromptLimits, PromptSet
from harness.dataset.prompts import read_prompts
from harness.dataset.run_info import RunIdentity, RunInfo
from harness.dataset.space import check_space, estimate_bytes
from harness.engine_facts import Inspection, inspect
from harness.errors import Refused, UsageError
from harness.extraction.options import CaptureChoice, EngineOptions, ExtractOptions
from harness.layers import LayerPlan, resolve
from harness.recipe import Choice, Recipe, RecipeRequest, choose_capture
from harness.standing.preload import require_static

CANARY_TOKENS = 99
"""Longest canary prompt where prompts are not cut into chunks."""


@dataclass(frozen=True)
class EnginePlan:
    """How one engine will be loaded, decided without loading it.

    Attributes:
        options: What was asked.
        model: Facts of the checkpoint.
        layers: Which depths in which order; None for plain prefill.
        seen: The machine and the installed vLLM.
        why: Why this capture.
        recipe: Every setting with its reason.
        session: What the session needs.
    """

    options: EngineOptions
    model: models.ModelFacts
    layers: LayerPlan | None
    seen: Inspection
    why: str
    recipe: Recipe
    session: SessionSpec

    @property
    def dtype(self) -> str:
        """The dtype the engine runs in."""
        return self.session.dtype


@dataclass(frozen=True)
class ExtractPlan:
    """One extraction, decided.

    Attributes:
        options: What was asked.
        engine: How the engine will be loaded.
        prompts: The prompts, read and checked.
        info: Identity and description for ``run.json``.
    """

    options: ExtractOptions
    engine: EnginePlan
    prompts: PromptSet
    info: RunInfo

    @property
    def bytes(self) -> int:
        """Size of all samples together."""
        return self.bytes_of(range(len(self.prompts)))

    def bytes_of(self, indices: Sequence[int]) -> int:
        """Size of the samples of some prompts."""
        lengths = self.prompts.lengths
        width = {"float32": 4, "bfloat16": 2}[self.engine.dtype]
        return estimate_bytes(
            int(lengths[list(indices)].sum()) if len(indices) else 0,
            self.info.columns,
            self.info.hidden_size,
            width,
            samples=len(indices),
        )


def plan_engine(options: EngineOptions, *, longest_prompt: int | None, spool: Path) -> EnginePlan:
    """Decide how to load an engine.

    Args:
        options: What is asked.
        longest_prompt: Tokens of the longest prompt; None where only the canary is sent, or
            where ``options.max_model_len`` says it.
        spool: Where samples will appear.

    Raises:
        UsageError: Model, layers or dtype cannot be right.
        Refused: It would fail, hang or be wrong here; ``gate.refused``: the installed vLLM lacks
            what the capture touches.
        NotComparable: The installed vLLM is unknown.
    """
    # The engine works in a folder of its own; ".." may lead through a name that is a pattern.
    path = Path(os.path.normpath(options.model.absolute()))
    _refuse_pattern(path)
    model = models.read(path)
    seen = inspect(options.python)
    facts = seen.engine
    layers: LayerPlan | None = None
    if options.capture != "none":
        layers = resolve(options.layers, options.dialect, model.num_layers, layout=options.layout)
    longest = max(longest_prompt or 0, CANARY_TOKENS)
    if options.max_model_len is not None:
        longest = min(longest, options.max_model_len - 1)
    request = RecipeRequest(
        platform=seen.platform,
        engine=facts,
        model=model,
        layers=layers,
        capture="none" if layers is None else "native",
        spool=spool if layers else None,
        dtype=options.dtype,
        tensor_parallel_size=options.tensor_parallel_size,
        longest_prompt=longest,
        max_model_len=options.max_model_len,
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_num_seqs=options.max_num_seqs,
        gpu_memory_utilization=options.gpu_memory_utilization,
        use_mla=options.use_mla,
    )
    choice = _choose(options.capture, request)
    if seen.package is not None:
        require_static(
            seen.package,
            choice.capture,
            python=options.python,
            architecture=model.architecture,
            skip=options.skip_gate,
        )
    made = recipe.build(replace(request, capture=choice.capture))
    args = made.engine_args
    budget = int(args["max_num_batched_tokens"])
    most = int(args["max_model_len"]) - 1
    session = SessionSpec(
        name=choice.capture,
        plan=layers,
        engine_args=args,
        expect=made.expect,
        spool=spool,
        vocab_size=model.vocab_size,
        forbidden_ids=forbidden_ids(model),
        max_prompt_tokens=most,
        token_budget=budget,
        # The recipe gives a budget below the longest request only where chunks are allowed.
        chunked=budget < most,
        dtype=str(args["dtype"]),
        deadlines=options.deadlines,
        writer_threads=recipe.writer_threads(seen.platform, choice.capture),
    )
    return EnginePlan(options, model, layers, seen, choice.why, made, session)


def _choose(asked: CaptureChoice, request: RecipeRequest) -> Choice:
    if asked != "auto":
        return Choice(asked, "as asked")
    if request.engine.vllm is None:
        return Choice("native", "the recipe refuses an unknown vLLM")
    return choose_capture(request)


def make_plan(
    options: ExtractOptions, *, tokenise: Callable[[Path], Path] | None = None
) -> ExtractPlan:
    """Decide a whole extraction: model, prompts, layers, engine, size.

    Args:
        options: What is asked.
        tokenise: Turns conversations into token ids, see :func:`read_prompts`.

    Raises:
        HarnessError: Whatever would make the run fail or be wrong.
    """
    asked = options.engine
    if asked.capture == "none":
        raise UsageError(
            "extract.no-capture",
            expected="a capture that writes hidden states",
            found="none",
            where="--capture",
            next="leave --capture out",
        )
    model = models.read(asked.model)
    if asked.max_model_len is not None and asked.max_model_len < 3:
        raise UsageError(
            "extract.max-model-len",
            expected="3 or more: two prompt tokens, so that the canary can compare one with "
            "its log-probability, and the output token vLLM insists on",
            found=str(asked.max_model_len),
            where="--max-model-len",
            next="leave it out to take the longest prompt plus one",
        )
    limits = PromptLimits(
        vocab_size=model.vocab_size,
        max_tokens=(asked.max_model_len or model.max_position_embeddings) - 1,
        truncate=options.truncate,
        forbidden_ids=forbidden_ids(model),
    )
    models.check_shards(asked.model)
    prompts = read_prompts(options.prompts, limits=limits, tokenise=tokenise)
    spool = (options.out / ".spool").absolute()
    engine = plan_engine(asked, longest_prompt=int(prompts.lengths.max()), spool=spool)
    layers = engine.layers
    assert layers is not None
    info = RunInfo(
        identity=RunIdentity(
            model=models.fingerprint(asked.model),
            depths=layers.depths,
            layout=layers.layout,
            dtype=engine.dtype,
            capture=engine.session.name,
            prompts=prompts.fingerprint,
            vllm=str(engine.seen.engine.vllm or ""),
        ),
        model_path=str(asked.model.absolute()),
        layers=layers.to_json(),
        hidden_size=model.hidden_size,
        versions=engine.seen.engine.versions,
        engine=engine.recipe.to_json(),
    )
    return ExtractPlan(options, engine, prompts, info)


def check_out(plan: ExtractPlan) -> None:
    """Hold the output folder to the plan without touching it.

    Raises:
        Refused: It holds something else, or the disk has no room.
    """
    out = plan.options.out
    admit(out.absolute(), plan.info.identity)
    if not out.exists():
        check_space(out, plan.bytes, samples=len(plan.prompts))


def _refuse_pattern(model: Path) -> None:
    """Refuse a path that vLLM would take for a pattern: it looks for weights with glob."""
    if set(str(model)) & set("*?[]"):
        raise Refused(
            "model.path-is-a-pattern",
            expected="a path without * ? [ ]",
            found=str(model),
            where="--model",
            next="give a link instead: ln -s FOLDER /some/plain/path",
        )


def forbidden_ids(model: models.ModelFacts) -> frozenset[int]:
    """Ids that a multimodal wrapper would take for an image."""
    placeholder = model.media_placeholder_id
    return frozenset() if placeholder is None else frozenset({placeholder})
