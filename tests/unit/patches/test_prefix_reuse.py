"""Prefix reuse is off, whatever the release's default."""

from __future__ import annotations

from harness.patches import Status, by_id
from harness.seams import Entry, recorded
from tests.unit.patches.contract import Contract, with_probe
from tests.unit.patches.fakes import generator, handed


class TestContract(Contract):
    id = "prefix-reuse"
    broken_by = (("config.cache", Entry("class", signature="(block_size)")),)


def test_the_generators_call_says_no() -> None:
    module = generator(recorded("0.16.0"))
    by_id("prefix-reuse").apply(handed(module))
    made = module.CacheConfig(block_size=16, gpu_memory_utilization=0.8)
    assert (made.enable_prefix_caching, made.block_size) == (False, 16)


def test_a_default_that_nobody_knows_is_broken() -> None:
    surface = with_probe(recorded("0.16.0"), "prefix-caching.default", "unknown")
    assert by_id("prefix-reuse").state(surface).status is Status.BROKEN
