"""The names are back in the module that 0.3.0 imports them from."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType

import pytest

from harness.errors import Refused
from harness.patches import Status, by_id
from harness.seams import Entry, recorded
from tests.unit.patches.contract import GONE, Contract, with_entry
from tests.unit.patches.fakes import cache_utils, generator, handed, recorded_call

PLANNING = "vllm.v1.core.kv_cache_planning"
SEAM = "kv.config-from-groups"
NAME = "get_kv_cache_config_from_groups"


class TestContract(Contract):
    id = "kv-planning"
    newest = "0.33.0"
    broken_by = (
        ("kv.unify-hybrid", GONE),
        (SEAM, Entry("function", (f"vllm.v1.core.elsewhere:{NAME}",), signature="()")),
    )


def test_a_name_in_its_old_place_only_in_part_is_broken_and_not_guessed() -> None:
    """One of the three moved back: the patch was written for all or none."""
    old = Entry("function", (f"vllm.v1.core.kv_cache_utils:{NAME}",), signature="()")
    state = by_id("kv-planning").state(with_entry(recorded("0.33.0"), SEAM, old))
    assert state.status is Status.BROKEN


def test_the_new_place_is_not_imported_before_it_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It imports the old one, which is just being imported."""
    monkeypatch.setitem(sys.modules, PLANNING, None)
    module = cache_utils(recorded("0.33.0"))
    by_id("kv-planning").apply(handed(module))
    with pytest.raises(ImportError):
        getattr(module, NAME)()


def test_calls_reach_the_new_place_and_its_signature_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    surface = recorded("0.33.0")
    planning = ModuleType(PLANNING)
    planning.get_kv_cache_config_from_groups = recorded_call(surface, SEAM)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, PLANNING, planning)
    module = cache_utils(surface)
    by_id("kv-planning").apply(handed(module))
    call = getattr(module, NAME)
    given = {"vllm_config": 1, "kv_cache_groups": 2, "available_memory": 3}
    assert vars(call(**given)) == given
    assert inspect.signature(call) == surface.entry(SEAM).parsed()


def test_the_patch_of_its_call_judges_the_function_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What stands in the old place takes everything; the real one decides."""
    planning = ModuleType(PLANNING)
    planning.get_kv_cache_config_from_groups = lambda groups: groups  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, PLANNING, planning)
    surface = recorded("0.33.0")
    utils, module = cache_utils(surface), generator(surface)
    by_id("kv-planning").apply(handed(utils))
    setattr(module, NAME, getattr(utils, NAME))
    with pytest.raises(Refused, match=r"patches\.unknown-signature"):
        by_id("kv-config-call").apply(handed(module))


def test_a_release_that_has_the_names_is_left_alone() -> None:
    module = cache_utils(recorded("0.32.0"))
    before = dict(vars(module))
    assert by_id("kv-planning").apply(handed(module)).status is Status.OBSOLETE
    assert {name: vars(module).get(name) for name in before} == before
