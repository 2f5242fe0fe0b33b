"""What every patch promises; each test file subclasses it with the patch's id."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest
from packaging.specifiers import SpecifierSet

from harness.errors import Refused
from harness.patches import Change, Modules, Patch, Status, by_id
from harness.seams import Entry, Surface, recorded, releases
from harness.seams.recorded import added
from tests.unit.patches.fakes import handed, modules_of

RELEASES = releases()


def with_entry(surface: Surface, seam: str, entry: Entry) -> Surface:
    """The same surface with something else at one seam."""
    return replace(surface, entries={**surface.entries, seam: entry})


def with_probe(surface: Surface, probe: str, value: str) -> Surface:
    """The same surface with another answer."""
    return replace(surface, probes={**surface.probes, probe: value})


def found(patch: Patch, modules: Modules) -> list[Any]:
    """What stands at each place that the patch replaces, and at the classes around them."""
    module = modules(patch.module)
    places: list[Any] = []
    for change in patch.changes:
        first, _, member = change.name.partition(".")
        holder = getattr(module, first, None)
        places += [holder, vars(holder).get(member) if member else None]
    return places


class Contract:
    """The common promises."""

    id: ClassVar[str]
    broken_by: ClassVar[tuple[tuple[str, Entry], ...]] = ()
    """Seams, each with an entry with which the patch would not hold."""
    newest: ClassVar[str] = RELEASES[-1] if RELEASES else ""
    """A release that needs the patch."""

    @property
    def patch(self) -> Patch:
        return by_id(self.id)

    def modules(self, release: str | None = None) -> Modules:
        return modules_of(recorded(release or self.newest))

    @pytest.mark.parametrize("release", RELEASES)
    def test_is_needed_where_its_releases_say_and_goes_on_once_and_comes_off(
        self, release: str
    ) -> None:
        state = self.patch.state(recorded(release))
        if release not in SpecifierSet(self.patch.releases):
            assert state.status is Status.OBSOLETE, state
            return
        if state.status is Status.OBSOLETE and release in added():
            return  # a candidate of the gate has repaired the fault itself
        assert state.status is Status.NEEDED, state
        patch, modules = self.patch, self.modules(release)
        before = found(patch, modules)
        assert patch.apply(modules).status is Status.IN_FORCE
        patch.verify(modules)
        assert patch.state(recorded(release), modules).status is Status.IN_FORCE
        on = found(patch, modules)
        assert patch.apply(modules).status is Status.IN_FORCE
        assert all(one is other for one, other in zip(found(patch, modules), on, strict=True))
        assert not all(one is other for one, other in zip(on, before, strict=True))
        patch.undo(modules)
        after = found(patch, modules)
        assert all(one is other for one, other in zip(after, before, strict=True))
        patch.undo(modules)
        with pytest.raises(Refused, match=r"patches\.not-in-force"):
            patch.verify(modules)

    def test_conflict_with_another_patch_names_both(self) -> None:
        patch, modules = self.patch, self.modules()
        rival = replace(patch, id="rival", changes=(Change(patch.changes[-1].name, lambda x: [x]),))
        patch.apply(modules)
        with pytest.raises(Refused, match=r"patches\.conflict") as refused:
            rival.apply(modules)
        assert "rival" in str(refused.value)
        assert patch.id in str(refused.value)
        patch.verify(modules)

    def test_missing_anchor_is_refused_and_nothing_is_changed(self) -> None:
        patch, modules = self.patch, self.modules()
        with pytest.raises(Refused, match=r"patches\.missing-anchor") as refused:
            patch.apply(handed())
        assert patch.module in str(refused.value)
        if any(change.adds for change in patch.changes):
            return
        module = modules(patch.module)
        delattr(module, patch.changes[-1].name.partition(".")[0])
        before = [getattr(module, change.name, None) for change in patch.changes]
        with pytest.raises(Refused, match=r"patches\.missing-anchor") as refused:
            patch.apply(modules)
        assert patch.id in str(refused.value)
        assert [getattr(module, change.name, None) for change in patch.changes] == before
        assert not patch.is_in_force(modules)

    def test_release_with_another_shape_is_broken(self) -> None:
        for seam, entry in self.broken_by:
            state = self.patch.state(with_entry(recorded(self.newest), seam, entry))
            assert state.status is Status.BROKEN, (seam, state)


GONE = Entry("missing", where="vllm")
