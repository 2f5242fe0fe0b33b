"""Names of libraries for a release that looks for them in ``LD_PRELOAD``."""

from __future__ import annotations

import os

import pytest

from harness.inside import cpu_libraries


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, "libtcmalloc:libiomp"),
        ("/usr/lib/libjemalloc.so", "/usr/lib/libjemalloc.so:libtcmalloc:libiomp"),
        ("/usr/lib/libtcmalloc_minimal.so.4", "/usr/lib/libtcmalloc_minimal.so.4:libiomp"),
    ],
)
def test_what_is_not_named_is_named_and_the_users_own_stays_first(
    monkeypatch: pytest.MonkeyPatch, before: str | None, after: str
) -> None:
    # Deleting a variable that is not there would leave nothing to restore.
    monkeypatch.setenv("LD_PRELOAD", before or "")
    if before is None:
        monkeypatch.delenv("LD_PRELOAD")
    cpu_libraries.install()
    assert os.environ["LD_PRELOAD"] == after
    cpu_libraries.install()
    assert os.environ["LD_PRELOAD"] == after
