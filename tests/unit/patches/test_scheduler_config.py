"""``SchedulerConfig`` gets the argument that it asks for."""

from __future__ import annotations

import pytest

from harness.errors import Refused
from harness.patches import Status, by_id
from harness.seams import Entry, recorded
from tests.unit.patches.contract import GONE, Contract
from tests.unit.patches.fakes import generator, handed, taking


class TestContract(Contract):
    id = "scheduler-config"
    broken_by = (("config.scheduler", Entry("class", signature="(is_encoder_decoder, beams)")),)


KEYS = {"max_num_seqs": 32, "max_model_len": 64, "max_num_batched_tokens": 64}


def test_the_generators_own_call_gets_through() -> None:
    module = generator(recorded("0.16.0"))
    with pytest.raises(TypeError, match="is_encoder_decoder"):
        module.SchedulerConfig(**KEYS)
    by_id("scheduler-config").apply(handed(module))
    made = module.SchedulerConfig(**KEYS)
    assert (made.is_encoder_decoder, made.max_num_seqs) == (False, 32)


def test_a_release_that_does_not_ask_is_left_alone() -> None:
    module = generator(recorded("0.11.2"))
    original = module.SchedulerConfig
    assert by_id("scheduler-config").apply(handed(module)).status is Status.OBSOLETE
    assert module.SchedulerConfig is original


def test_a_second_required_argument_is_refused() -> None:
    surface = recorded("0.16.0")
    module = generator(surface)
    changed = Entry("class", signature="(is_encoder_decoder, beams)").parsed()
    assert changed is not None
    module.SchedulerConfig = taking(changed)  # type: ignore[attr-defined]
    with pytest.raises(Refused, match=r"patches\.unknown-signature") as refused:
        by_id("scheduler-config").apply(handed(module))
    assert "max_num_seqs" in str(refused.value)
    assert by_id("scheduler-config").state(surface).status is Status.NEEDED


def test_a_release_without_the_class_is_broken() -> None:
    surface = recorded("0.16.0")
    gone = type(surface)(
        surface.release, surface.build, {**surface.entries, "config.scheduler": GONE}, {}
    )
    assert by_id("scheduler-config").state(gone).status is Status.BROKEN
