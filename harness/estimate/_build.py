"""From a model and an engine's settings to an estimate."""

from __future__ import annotations

from harness.estimate._cache import cache_pages
from harness.estimate._cards import Card
from harness.estimate._engine import EngineSize, run_dtype
from harness.estimate._estimate import Estimate
from harness.estimate._host import USUAL_RATE, host_terms, page_cache_term
from harness.estimate._model import WIDTH, Model
from harness.estimate._sharding import require_shards
from harness.estimate._weights import repack_bytes, weight_terms
from harness.estimate._work import captured_term, library_terms, prefill_term, step_term


def estimate(
    model: Model,
    engine: EngineSize,
    *,
    output: int = 0,
    read_rate: float | None = None,
    rate_source: str = "as given",
) -> Estimate:
    """Say what an engine needs, without starting it.

    Args:
        model: The model.
        engine: The settings.
        output: Bytes of the samples that will be written.
        read_rate: Bytes a second of the disk; by default one once seen.
        rate_source: Where ``read_rate`` comes from.

    Raises:
        Refused: ``estimate.tensor-parallel``: the size does not divide the model.
        UsageError: ``estimate.dtype``.
    """
    checks = require_shards(model, engine.tensor_parallel_size)
    dtype = run_dtype(model, engine)
    width, shape, ranks = WIDTH[dtype], model.shape, engine.tensor_parallel_size
    tokens, sequences = engine.max_num_batched_tokens, engine.max_num_seqs
    native = engine.columns if engine.capture == "native" else 0
    pages = cache_pages(shape, columns=native, width=width)
    inside = [
        *weight_terms(model, ranks, dtype=dtype, vision=engine.vision),
        step_term(shape, ranks, tokens=tokens, sequences=sequences, width=width),
    ]
    outside = [
        *library_terms(ranks),
        prefill_term(shape, max_model_len=engine.max_model_len, sequences=sequences, width=width),
    ]
    if engine.capture != "none":
        rows = captured_term(
            engine.capture,
            columns=engine.columns,
            hidden=shape.hidden_size,
            tokens=tokens,
            width=width,
        )
        (inside if engine.capture == "native" else outside).append(rows)
    host = host_terms(
        ranks,
        row_bytes=engine.columns * shape.hidden_size * width if engine.capture != "none" else 0,
        tokens=tokens,
        max_model_len=engine.max_model_len,
    )
    usual = "none given: Kimi-K2.5 in 20 minutes, as once seen"
    return Estimate(
        model=model,
        engine=engine,
        inside=tuple(inside),
        outside=tuple(outside),
        repack=repack_bytes(model, ranks),
        pages=pages,
        host=host,
        page_cache=page_cache_term(model),
        output=output,
        checks=(*checks, pages.check()) if native else checks,
        read_rate=USUAL_RATE if read_rate is None else read_rate,
        rate_source=usual if read_rate is None else rate_source,
    )


def most_layers(model: Model, engine: EngineSize, card: Card) -> int:
    """Return the most decoder layers, up to the model's, that fit a card; 0 when none does."""
    least, most = model.shape.first_k_dense_replace, model.shape.num_hidden_layers
    while least < most:
        middle = (least + most + 1) // 2
        if estimate(model.with_layers(middle), engine).on(card).fits:
            least = middle
        else:
            most = middle - 1
    return least if least > model.shape.first_k_dense_replace else 0
