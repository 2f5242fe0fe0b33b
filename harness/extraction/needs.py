"""What a planned engine needs, from the very settings that it would be started with."""

from __future__ import annotations

from harness.errors import NotComparable
from harness.estimate import CARDS, EngineSize, Estimate, gib, needs
from harness.extraction.plan import EnginePlan


def engine_needs(plan: EnginePlan, *, output: int = 0) -> Estimate:
    """Estimate a planned engine.

    Args:
        plan: The plan; its recipe's lengths, budget, utilisation and capture are taken.
        output: Bytes of the samples that will be written.

    Raises:
        Refused: ``estimate.tensor-parallel``.
        NotComparable: ``models.unknown-family`` or ``estimate.unknown-weights``.
    """
    arguments, layers = plan.recipe.engine_args, plan.layers
    size = EngineSize(
        capture=plan.session.name if layers else "none",
        columns=len(layers.engine_depths) if layers else 0,
        written=len(layers.depths) if layers else 0,
        dtype=plan.dtype,
        gpu_memory_utilization=plan.options.gpu_memory_utilization,
        max_model_len=int(arguments["max_model_len"]),
        max_num_batched_tokens=int(arguments["max_num_batched_tokens"]),
        max_num_seqs=int(arguments["max_num_seqs"]),
        vision=False,  # the recipe always asks for text only, in the release's own way
    )
    return needs(plan.model, plan.options.tensor_parallel_size, engine=size, output=output)


def memory_line(plan: EnginePlan) -> str:
    """Return in one line what the plan needs on each GPU, and which known cards have it."""
    try:
        made = engine_needs(plan)
    except NotComparable as error:
        failure = error.failure
        return f"GPU memory: unknown; expected {failure.expected}, found {failure.found}"
    fits = [card.title for card in CARDS.values() if made.on(card).fits]
    return (
        f"GPU memory: at least {gib(made.device_bytes)} on each of "
        f"{made.engine.tensor_parallel_size}; fits: {', '.join(fits) or 'no known card'} "
        "(harness plan says why)"
    )
