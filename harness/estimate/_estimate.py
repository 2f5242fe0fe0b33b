"""The whole estimate: what each device, the host and the disk need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.estimate._cache import CachePages
from harness.estimate._cards import Card
from harness.estimate._engine import EngineSize, run_dtype
from harness.estimate._host import USUAL_RATE, load_seconds
from harness.estimate._model import WIDTH, Model
from harness.estimate._sharding import ShardCheck
from harness.estimate._terms import Term, largest, total
from harness.estimate._units import gib
from harness.estimate._verdict import Verdict

_NOT_WEIGHTS = ("one step's tensors", "captured rows of a step")


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
    rate_source: str = ""

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
