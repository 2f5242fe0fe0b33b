"""The whole estimate: what each device, the host and the disk need, and whether it fits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from harness.errors import UsageError
from harness.estimate._cache import CachePages, cache_pages
from harness.estimate._cards import Card
from harness.estimate._host import USUAL_RATE, host_terms, load_seconds, page_cache_term
from harness.estimate._model import WIDTH, Model
from harness.estimate._sharding import ShardCheck, require_shards
from harness.estimate._terms import Term, largest, total
from harness.estimate._units import gib
from harness.estimate._weights import repack_bytes, weight_terms
from harness.estimate._work import captured_term, library_terms, prefill_term, step_term


@dataclass(frozen=True)
class EngineSize:
    """The settings of an engine that decide its memory.

    Attributes:
        tensor_parallel_size: Ranks, one a device.
        capture: ``native``, ``patched`` or ``none``.
        columns: Depths that the engine captures, depth L for the canary counted.
        written: Depths in a sample's file.
        dtype: ``float32``, ``bfloat16``, or ``auto`` for the checkpoint's.
        gpu_memory_utilization: Share of a device that vLLM may take.
        max_model_len: Tokens of the longest request, its one output token included.
        max_num_batched_tokens: Tokens of one step.
        max_num_seqs: Requests in flight.
        vision: Whether the vision tower is built.
    """

    tensor_parallel_size: int = 1
    capture: str = "native"
    columns: int = 4
    written: int = 4
    dtype: str = "auto"
    gpu_memory_utilization: float = 0.85
    max_model_len: int = 8192
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    vision: bool = False


@dataclass(frozen=True)
class Estimate:
    """What one engine needs.

    Attributes:
        model: The model.
        engine: The settings.
        inside: What a device's share of ``gpu_memory_utilization`` must hold beside the cache.
        outside: What a device needs beside that share.
        repack: Bytes above the weights while they are put into kernel order, before the cache.
        pages: What a token takes in the cache.
        host: What the engine's processes hold on the host.
        page_cache: The checkpoint in memory: wanted, given back when asked for.
        output: Bytes of the samples.
        checks: Sharding checks.
        read_rate: Bytes a second of the disk.
        rate_source: Where ``read_rate`` comes from.
    """

    model: Model
    engine: EngineSize
    inside: tuple[Term, ...]
    outside: tuple[Term, ...]
    repack: int
    pages: CachePages
    host: tuple[Term, ...]
    page_cache: Term
    output: int
    checks: tuple[ShardCheck, ...]
    read_rate: float = USUAL_RATE
    rate_source: str = field(default="")

    @property
    def least_cache(self) -> int:
        """Bytes of the cache for one longest request; vLLM refuses to start with less."""
        return self.pages.bytes(self.engine.max_model_len)

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights on one device."""
        return total(term for term in self.inside if term.name not in _NOT_WEIGHTS)

    @property
    def device_bytes(self) -> int:
        """Bytes that must be free on each device for this engine to start and serve one request.

        vLLM itself wants ``gpu_memory_utilization`` of the device's total to be free, see
        :meth:`Verdict.asked`.
        """
        steady = total(self.inside) + self.least_cache + total(self.outside)
        return max(steady, self._load_peak)

    @property
    def host_bytes(self) -> int:
        """Bytes of host memory that the engine's processes hold."""
        return total(self.host)

    @property
    def disk_bytes(self) -> int:
        """Bytes that the samples take on disk."""
        return self.output

    @property
    def row_bytes(self) -> int:
        """Bytes of one token's rows in a sample file."""
        return self.engine.written * self.model.shape.hidden_size * self._width

    @property
    def load_seconds(self) -> float:
        """Seconds that the load should take."""
        return load_seconds(self.model.read_bytes, self.read_rate)

    @property
    def _width(self) -> int:
        return WIDTH[run_dtype(self.model, self.engine)]

    @property
    def _load_peak(self) -> int:
        return self.weight_bytes + self.repack + total(self.outside)

    def on(self, card: Card) -> Verdict:
        """Say whether it fits one kind of card."""
        asked = int(card.memory * self.engine.gpu_memory_utilization)
        pool = asked - total(self.inside)
        over = asked + total(self.outside) - card.memory
        reasons = []
        if pool < self.least_cache:
            reasons.append(
                f"{gib(pool)} for a cache that needs {gib(self.least_cache)}: one request of "
                f"{self.engine.max_model_len} tokens"
                if pool > 0
                else f"{gib(-pool)} more than the {gib(asked)} that vLLM may take"
            )
        if over > 0:
            reasons.append(f"{gib(over)} too much beside that share")
        if self._load_peak > card.memory:
            reasons.append(f"{gib(self._load_peak)} while weights are put into kernel order")
        terms = [*self.inside, Term("cache", self.least_cache, "", "exact"), *self.outside]
        return Verdict(card, asked, pool, self.pages.tokens(pool), tuple(reasons), largest(terms))

    def to_json(self) -> dict[str, Any]:
        """Return the estimate as a JSON object; sizes in bytes, times in seconds."""
        return {
            "model": self.model.name,
            "layers": self.model.shape.num_hidden_layers,
            "tensor_parallel_size": self.engine.tensor_parallel_size,
            "capture": self.engine.capture,
            "checkpoint_bytes": self.model.checkpoint_bytes,
            "weight_bytes": self.weight_bytes,
            "device_bytes": self.device_bytes,
            "host_bytes": self.host_bytes,
            "page_cache_bytes": self.page_cache.bytes,
            "disk_bytes": self.disk_bytes,
            "cache_bytes_per_token": self.pages.token,
            "hidden_state_cache_bytes_per_token": self.pages.hidden_token,
            "output_bytes_per_token": self.row_bytes,
            "load_seconds": round(self.load_seconds, 1),
            "read_rate": self.read_rate,
            "read_rate_source": self.rate_source,
            "terms": {
                "inside": [term.to_json() for term in self.inside],
                "outside": [term.to_json() for term in self.outside],
                "host": [term.to_json() for term in self.host],
            },
            "checks": [check.to_json() for check in self.checks],
        }


@dataclass(frozen=True)
class Verdict:
    """Whether an estimate fits a card.

    Attributes:
        card: The card.
        asked: Bytes that vLLM may take, and wants free: utilisation x total.
        pool: What is left of these for the cache; negative where even the rest is too much.
        tokens: Tokens that the cache then holds, over all requests.
        reasons: Why it does not fit; empty when it does.
        largest: The largest term.
    """

    card: Card
    asked: int
    pool: int
    tokens: int
    reasons: tuple[str, ...]
    largest: Term

    @property
    def fits(self) -> bool:
        """Whether the engine starts and serves the longest request."""
        return not self.reasons

    def explain(self) -> str:
        """Return the verdict in one line."""
        if self.fits:
            return f"{self.card.title}: fits, {self.tokens:,} tokens of cache"
        return (
            f"{self.card.title}: does not fit: {'; '.join(self.reasons)}; largest: "
            f"{self.largest.name}, {gib(self.largest.bytes)}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as a JSON object; sizes in bytes."""
        return {
            "card": self.card.name,
            "memory": self.card.memory,
            "memory_source": self.card.source,
            "fits": self.fits,
            "asked": self.asked,
            "cache_bytes": self.pool,
            "cache_tokens": self.tokens,
            "reasons": list(self.reasons),
            "largest": self.largest.name,
        }


_NOT_WEIGHTS = ("one step's tensors", "captured rows of a step")


def run_dtype(model: Model, engine: EngineSize) -> str:
    """Return the dtype that the engine runs in.

    Raises:
        UsageError: ``estimate.dtype``.
    """
    dtype = model.dtype if engine.dtype == "auto" else engine.dtype
    if dtype not in WIDTH:
        raise UsageError(
            "estimate.dtype",
            expected="auto, float32 or bfloat16",
            found=dtype,
            where="--dtype",
            next="leave it out: auto is the checkpoint's own",
        )
    return dtype


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
