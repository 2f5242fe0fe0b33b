"""Rules that hold for all patches together."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from types import ModuleType

import pytest

from harness.errors import Refused, UsageError
from harness.patches import (
    PATCHES,
    Change,
    NotNeeded,
    Status,
    Unfit,
    by_id,
    check_conflicts,
    needed_in,
    of_release,
)
from harness.seams import BY_ID, recorded, releases
from tests.unit.patches.contract import GONE, with_entry
from tests.unit.patches.fakes import handed, libraries, modules_of

ONE = replace(PATCHES[0], id="one", module="m", changes=(Change("Thing", lambda found: [found]),))


def module() -> ModuleType:
    made = ModuleType("m")
    made.Thing = object()  # type: ignore[attr-defined]
    return made


def test_ids_are_unique_and_no_two_patches_replace_one_name() -> None:
    assert max(Counter(patch.id for patch in PATCHES).values()) == 1
    check_conflicts()


def test_two_patches_on_one_name_are_refused_with_both_ids() -> None:
    with pytest.raises(Refused, match="two and one"):
        check_conflicts([ONE, replace(ONE, id="two")])
    inner = replace(ONE, id="two", changes=(Change("Thing.part", lambda found: found),))
    with pytest.raises(Refused, match="two and one"):
        check_conflicts([ONE, inner])
    with pytest.raises(Refused, match="one and two"):
        check_conflicts([inner, ONE])


def test_every_patch_names_a_seam_of_the_inventory_or_none() -> None:
    assert [patch.id for patch in PATCHES if patch.seam and patch.seam not in BY_ID] == []


@pytest.mark.parametrize("release", releases())
def test_the_needed_patches_of_a_release_go_on_together_and_come_off(
    release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries(monkeypatch)
    modules = modules_of(recorded(release))
    before = {name: dict(vars(modules(name))) for name in {patch.module for patch in PATCHES}}
    chosen = needed_in(of_release(release))
    for patch in chosen:
        assert patch.apply(modules).status is Status.IN_FORCE, patch.id
    for patch in chosen:
        patch.verify(modules)
    for patch in chosen:
        patch.undo(modules)
    for name, there in before.items():
        now = {key: value for key, value in vars(modules(name)).items() if key in there}
        assert now == there


def test_a_class_from_elsewhere_is_not_changed_but_stands_behind_a_subclass() -> None:
    found = type("Thing", (), {"__module__": "vllm", "part": lambda self: 1})
    made = module()
    made.Thing = found  # type: ignore[attr-defined]
    change = Change("Thing.part", lambda original: lambda self: original(self) + 1)
    patch = replace(ONE, changes=(change,))
    patch.apply(handed(made))
    assert made.Thing().part() == 2
    assert found().part() == 1
    patch.undo(handed(made))
    assert made.Thing is found


def test_what_is_not_needed_leaves_everything_as_it_was() -> None:
    def not_needed(found: object) -> object:
        raise NotNeeded("it is right already")

    made = module()
    thing = made.Thing
    made.Other = other = object()  # type: ignore[attr-defined]
    changes = (Change("Other", lambda found: [found]), Change("Thing", not_needed))
    patch = replace(ONE, changes=changes)
    state = patch.apply(handed(made))
    assert (state.status, state.reason) == (Status.OBSOLETE, "it is right already")
    assert made.Thing is thing
    assert made.Other is other


def test_unknown_shape_is_refused_and_says_what_was_found() -> None:
    def unfit(found: object) -> object:
        raise Unfit("it takes seven arguments")

    patch = replace(ONE, changes=(Change("Thing", unfit),))
    with pytest.raises(Refused, match="seven arguments"):
        patch.apply(handed(module()))


def test_undo_and_verify_refuse_where_somebody_else_replaced_the_object_since() -> None:
    made = module()
    ONE.apply(handed(made))
    made.Thing = stranger = object()  # type: ignore[attr-defined]
    assert not ONE.is_in_force(handed(made))
    for step in (ONE.verify, ONE.undo):
        with pytest.raises(Refused, match=r"patches\.replaced-since"):
            step(handed(made))
    assert made.Thing is stranger


def test_unknown_id_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="two-phase"):
        by_id("three-phase")


def test_a_broken_patch_stops_the_choice_before_anything_starts() -> None:
    environment = of_release("0.16.0")
    gone = with_entry(environment.surface, "scheduler.finish_requests", GONE)
    with pytest.raises(Refused, match=r"all-chunks .*scheduler\.finish_requests is gone"):
        needed_in(replace(environment, surface=gone))


def test_importing_the_patches_imports_no_library() -> None:
    code = (
        "import sys, harness.patches, harness.patches.hook;"
        "print(*{name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(done.stdout.split()) <= {"harness", "__main__", "sitecustomize"}
