"""Holds what every unit test must keep: the environment, and the user's own state untouched."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# pytest writes the name of the running test there; xdist its worker's.
_PYTEST = "PYTEST_"


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep the records of what tests start out of the state folder of the user who runs them."""
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARNESS_STATE", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def environment_as_found(own_state: Path) -> Iterator[None]:
    """Fail a test that leaves a variable behind: the tests after it would see it."""
    before = _environment()
    yield
    after = _environment()
    os.environ.update(before)
    for name in after.keys() - before.keys():
        del os.environ[name]
    left = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert not left, f"the test left these variables changed: {', '.join(sorted(left))}"


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_PYTEST)}
