"""The specs are left out where the groups hold them."""

from __future__ import annotations

import pytest

from harness.patches import by_id
from harness.seams import Entry, recorded
from tests.unit.patches.contract import Contract
from tests.unit.patches.fakes import generator, handed


class TestContract(Contract):
    id = "kv-config-call"
    broken_by = (("kv.config-from-groups", Entry("function", signature="(groups, memory)")),)


def test_the_generators_own_call_gets_through_without_the_specs() -> None:
    module = generator(recorded("0.16.0"))
    call = {"vllm_config": 1, "kv_cache_groups": 2, "kv_cache_specs": 3, "available_memory": 4}
    with pytest.raises(TypeError, match="kv_cache_specs"):
        module.get_kv_cache_config_from_groups(**call)
    by_id("kv-config-call").apply(handed(module))
    made = module.get_kv_cache_config_from_groups(**call)
    assert vars(made) == {"vllm_config": 1, "kv_cache_groups": 2, "available_memory": 4}
