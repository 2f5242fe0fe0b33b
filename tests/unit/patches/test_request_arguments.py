"""``eos_token_id`` is left out where it is not taken."""

from __future__ import annotations

import pytest

from harness.patches import Status, by_id
from harness.seams import Entry, recorded
from tests.unit.patches.contract import Contract
from tests.unit.patches.fakes import generator, handed


class TestContract(Contract):
    id = "request-arguments"
    broken_by = (("request", Entry("class", signature="(request_id, tokens)")),)


CALL = {
    "request_id": "req_0_0",
    "prompt_token_ids": [1],
    "sampling_params": None,
    "pooling_params": None,
    "eos_token_id": 2,
    "arrival_time": 0.0,
}


def test_the_generators_own_call_gets_through() -> None:
    module = generator(recorded("0.17.0"))
    with pytest.raises(TypeError, match="eos_token_id"):
        module.Request(**CALL)
    by_id("request-arguments").apply(handed(module))
    assert module.Request(**CALL).request_id == "req_0_0"


def test_a_release_that_takes_it_gets_it() -> None:
    module = generator(recorded("0.16.0"))
    assert by_id("request-arguments").apply(handed(module)).status is Status.OBSOLETE
    assert module.Request(**CALL).eos_token_id == 2
