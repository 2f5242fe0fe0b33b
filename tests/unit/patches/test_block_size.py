"""No block size is named where naming one forces it on the attention backend."""

from __future__ import annotations

import pytest

from harness.errors import Refused
from harness.patches import by_id
from harness.seams import Entry, Field, recorded
from tests.unit.patches.contract import GONE, Contract
from tests.unit.patches.fakes import generator, handed


class TestContract(Contract):
    id = "block-size"
    broken_by = (
        ("config.cache", GONE),
        ("config.cache", Entry("class", fields=(Field("user_specified_block_size", "False"),))),
    )


def test_the_constant_says_nothing_and_comes_back() -> None:
    module = generator(recorded("0.32.0"))
    by_id("block-size").apply(handed(module))
    assert module.VLLM_BLOCK_SIZE is None
    by_id("block-size").undo(handed(module))
    assert module.VLLM_BLOCK_SIZE == 16


def test_a_constant_of_another_kind_is_refused() -> None:
    module = generator(recorded("0.32.0"))
    module.VLLM_BLOCK_SIZE = "16"  # type: ignore[attr-defined]
    with pytest.raises(Refused, match="'16'"):
        by_id("block-size").apply(handed(module))
