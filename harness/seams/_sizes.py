"""How much an archive may hold: told by its directory, refused before anything is inflated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.errors import UsageError

LARGEST = 8 << 20
"""Bytes of one source; the largest of vLLM's has a third of a MiB."""
MOST = 512 << 20
"""Bytes of all sources; vLLM's have 40 MiB."""
_ANYTHING = 16 << 30
"""Bytes of a source archive with whatever lies beside the sources: it is inflated to be passed."""


@dataclass
class Sizes:
    """What an archive has told of so far.

    Attributes:
        where: The archive.
        sources: Bytes of sources.
        all: Bytes of everything.
    """

    where: str
    sources: int = 0
    all: int = 0

    def add(self, member: str, size: int, *, source: bool = True) -> None:
        """Count a member.

        Raises:
            UsageError: ``seams.too-large``.
        """
        self.all += size
        self.sources += size if source else 0
        if source and size > LARGEST:
            raise self._too_large(f"at most {_mib(LARGEST)} in one file", f"{member}, {_mib(size)}")
        if self.sources > MOST:
            found = f"{_mib(self.sources)} up to {member}"
            raise self._too_large(f"at most {_mib(MOST)} of sources", found)
        if self.all > _ANYTHING:
            found = f"{_mib(self.all)} up to {member}"
            raise self._too_large(f"at most {_mib(_ANYTHING)} in all", found)

    def add_all(self, members: Mapping[str, int]) -> None:
        """Count sources; one by one only where one of them may be too much.

        Raises:
            UsageError: ``seams.too-large``.
        """
        if (
            self.sources + sum(members.values()) > MOST
            or max(members.values(), default=0) > LARGEST
        ):
            for member, size in members.items():
                self.add(member, size)
            return
        self.sources += sum(members.values())
        self.all += sum(members.values())

    def _too_large(self, expected: str, found: str) -> UsageError:
        return UsageError(
            "seams.too-large",
            expected=f"a release of vLLM: {expected}",
            found=found,
            where=self.where,
            next="look at what this archive is before it is unpacked anywhere",
        )


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
