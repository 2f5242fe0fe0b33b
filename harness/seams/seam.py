"""A seam: one place where speculators or the harness touches vLLM's internals."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Consumer(StrEnum):
    """Who relies on a seam."""

    SPECULATORS_0_3 = "speculators-0.3.0"
    """Its in-process generator and worker extension, as published."""
    SPECULATORS_0_4 = "speculators-0.4.0"
    """The same files a release later."""
    NATIVE = "native"
    """``harness/inside`` and the settings of ``harness/recipe``, as they are."""
    PATCHED = "patched"
    """The patched capture under the ordinary ``LLM``: the same files, other settings."""
    PATCHES = "patches"
    """``harness/patches``, which make 0.3.0's generator right."""
    HS_CONNECTORS = "hs-connectors-0.9.0"
    """Connectors that speculators 0.9 brings for vLLM's own capture."""
    MOCK_ENGINE = "mock-engine"
    """The tests' own loop over scheduler and executor: told where a seam moves, decides nothing."""


class Kind(StrEnum):
    """What a seam is, to whoever relies on it."""

    MODULE = "module"
    FUNCTION = "function"
    CLASS = "class"
    METHOD = "method"
    FIELD = "field"
    """A name read from or given to a data class, or a member of an enum."""
    ATTRIBUTE = "attribute"
    """A name read from an instance or a module, wherever it comes from."""
    ENV = "env"
    """A key of ``vllm.envs.environment_variables``."""


@dataclass(frozen=True)
class Call:
    """The shape of a call.

    Attributes:
        positional: How many arguments are passed by place (``self`` not counted).
        keywords: The names passed by keyword.
    """

    positional: int = 0
    keywords: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = ["_"] * self.positional + [f"{name}=" for name in self.keywords]
        return f"({', '.join(parts)})"


@dataclass(frozen=True)
class Use:
    """How one consumer relies on a seam.

    Attributes:
        by: The consumer.
        calls: Shapes of its calls; empty where it only needs the name to be there.
        paths: The seam's paths that it knows; empty for all of them.
        optional: It asks whether the seam is there and does without it.
        either: It asks which of its calls the release takes: one that binds is enough.
        note: Where in the consumer, or why.
    """

    by: Consumer
    calls: tuple[Call, ...] = ()
    paths: tuple[str, ...] = ()
    optional: bool = False
    note: str = ""
    either: bool = False


@dataclass(frozen=True)
class Seam:
    """One place in vLLM, with everybody who relies on it.

    Attributes:
        id: Stable dotted id, such as ``scheduler.init``.
        kind: What it is to its users.
        paths: ``module:Name`` or ``module:Class.member``, newest place first.
        uses: Who relies on it, and how.
        owners: Classes that must define the member themselves; empty for any. A method that
            survives only in an abstract base still resolves, but is another method.
        note: The fact behind it, with its release.
        result_unused: Nobody looks at what a call of it returns.
    """

    id: str
    kind: Kind
    paths: tuple[str, ...]
    uses: tuple[Use, ...]
    owners: tuple[str, ...] = ()
    note: str = ""
    result_unused: bool = False

    def use(self, by: Consumer) -> Use | None:
        """Return how a consumer relies on it, or None."""
        return next((use for use in self.uses if use.by is by), None)
