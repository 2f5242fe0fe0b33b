"""What a patch is: a description that explains itself, and how it is put on and taken off."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from harness.errors import Refused
from harness.patches import _ledger
from harness.patches._modules import Modules, live
from harness.patches._state import State, in_force, obsolete
from harness.seams import Surface


class Process(StrEnum):
    """Where a patch works."""

    CONTROLLER = "controller"
    """The process that runs the user's script."""
    WORKER = "worker"
    """Each process that holds a part of the model."""
    BOTH = "both"


class NotNeeded(Exception):
    """Raised by ``Change.make``: the object in hand has not the fault."""


class Unfit(Exception):
    """Raised by ``Change.make``: the object in hand has a shape that the patch does not know."""


@dataclass(frozen=True)
class Change:
    """One name that a patch replaces.

    Attributes:
        name: The name inside the patch's module: ``Request``, or ``Scheduler.schedule`` for one
            method. A class that the module has from elsewhere is never changed itself: the
            module gets a subclass of its own, and the method is put there.
        make: Gives the replacement for the object found. Raises :class:`NotNeeded` or
            :class:`Unfit`.
        adds: The module need not have the name (``make`` gets None then); undo takes it away.
    """

    name: str
    make: Callable[[Any], Any]
    adds: bool = False


@dataclass(frozen=True, eq=False)
class Patch:
    """A registered repair of one seam.

    Attributes:
        id: Stable id, such as ``request-arguments``.
        process: Where it works.
        seam: The seam of ``harness.seams`` that it repairs; None: the fault is not at vLLM.
        module: The module whose names it replaces.
        changes: Those names; no other patch may replace one of them.
        summary: What it does, in a sentence.
        fault: What happens without it: the error's text, or what comes out wrong.
        silent: Whether nothing is raised without it.
        judge: Answers from a release's surface whether it is needed and fits.
        releases: The vLLM releases with the fault, as a specifier. A second word only: the
            surface decides.
        retire_when: When it can go.
        upstream: Where the change came from.
        environment: Variables that the processes must have.
        generation: 1: speculators' in-process generator.
        repairs: Findings of 0.3.0's own calls that it makes good: seam -> what :func:`bind` says
            there, as ``kind:subject`` with the last part of the subject.
    """

    id: str
    process: Process
    seam: str | None
    module: str
    changes: tuple[Change, ...] = field(repr=False)
    summary: str
    fault: str
    silent: bool
    judge: Callable[[Surface], State] = field(repr=False)
    releases: str
    retire_when: str
    upstream: str
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    generation: int = 1
    repairs: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def targets(self) -> tuple[str, ...]:
        """Every name that it replaces, as ``module:name``."""
        return tuple(f"{self.module}:{change.name}" for change in self.changes)

    def state(self, surface: Surface, modules: Modules | None = None) -> State:
        """Return what the patch is to a release.

        Args:
            surface: What the release offers.
            modules: Where given, a patch applied to these modules is ``in force``.
        """
        if modules is not None and self.is_in_force(modules):
            return in_force("every name is replaced")
        return self.judge(surface)

    def apply(self, modules: Modules = live) -> State:
        """Replace the names; a second time does nothing.

        Returns:
            ``in force``, or ``obsolete`` where the modules have not the fault.

        Raises:
            Refused: ``patches.missing-anchor``, ``patches.unknown-signature`` or
                ``patches.conflict``. Nothing is changed then.
        """
        if self.is_in_force(modules):
            return in_force("was applied before")
        module = self._module(modules)
        done: list[Change] = []
        try:
            for change in self.changes:
                _ledger.replace(module, change.name, change.make, by=self.id, adds=change.adds)
                done.append(change)
        except NotNeeded as reason:
            self._take_back(module, done)
            return obsolete(str(reason))
        except Unfit as reason:
            self._take_back(module, done)
            raise Refused(
                "patches.unknown-signature",
                expected=f"what the patch {self.id} was written for",
                found=str(reason),
                where=f"{self.module}:{self.changes[len(done)].name}",
                next="harness patches check",
            ) from None
        except BaseException:
            self._take_back(module, done)
            raise
        return in_force("applied")

    def undo(self, modules: Modules = live) -> None:
        """Put the original objects back; nothing where it is not in force.

        Raises:
            Refused: ``patches.replaced-since``: somebody else has put another object there.
        """
        if self.is_in_force(modules, anyhow=True):
            self._take_back(self._module(modules), self.changes)

    def verify(self, modules: Modules = live) -> None:
        """Make sure that every replacement is where it was put.

        Raises:
            Refused: ``patches.not-in-force`` or ``patches.replaced-since``.
        """
        module = self._module(modules)
        for change in self.changes:
            _ledger.verify(module, change.name, by=self.id)

    def is_in_force(self, modules: Modules = live, *, anyhow: bool = False) -> bool:
        """Whether it is applied; ``anyhow``: also where somebody replaced its object since."""
        try:
            module = modules(self.module)
        except ImportError:
            return False
        return all(
            _ledger.holds(module, change.name, by=self.id, anyhow=anyhow) for change in self.changes
        )

    def _module(self, modules: Modules) -> Any:
        try:
            return modules(self.module)
        except ImportError as error:
            raise Refused(
                "patches.missing-anchor",
                expected=f"the module {self.module}, for the patch {self.id}",
                found=str(error),
                where=self.module,
                next="pip install 'speculators>=0.3,<0.4' into that environment",
            ) from error

    def _take_back(self, module: Any, changes: tuple[Change, ...] | list[Change]) -> None:
        for change in reversed(changes):
            _ledger.restore(module, change.name, by=self.id)
