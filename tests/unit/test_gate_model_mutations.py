"""The gate against edits of the models' ``forward`` and of the registry that names them."""

from __future__ import annotations

import contextlib

import pytest

from tests.unit.model_edits import BREAKS, HARMLESS
from tests.unit.mutated import not_told, told_where_it_breaks

# Each costs a fifth of a second: those that are much like another are left to `make test-slow`.
LIKE_ANOTHER = frozenset({
    "depths rounded behind the text model", "depths of the last layers alone in the wrapper",
    "depths changed where they lie in the wrapper", "depths without the last row in the wrapper",
    "depths reversed where they lie behind the text model",
    "depths handed to a function behind the text model", "norm called by its plain forward",
    "depths without the last row behind the text model", "embedding called by its forward",
})  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=[pytest.mark.slow] * (one in LIKE_ANOTHER)) for one in BREAKS],
)
def test_break_in_a_model_or_its_registry_is_told(name: str) -> None:
    told_where_it_breaks(BREAKS[name])


@pytest.mark.parametrize("path", dict.fromkeys(path for path, _ in HARMLESS.values()))
def test_harmless_edits_of_a_model_are_not_told(path: str) -> None:
    def every(text: str) -> str:
        for at, edit in HARMLESS.values():
            # Another one may have changed that line.
            with contextlib.suppress(AssertionError):
                text = edit(text) if at == path else text
        return text

    not_told(path, every)


@pytest.mark.slow
@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_edit_of_a_model_or_its_registry_is_not_told(name: str) -> None:
    not_told(*HARMLESS[name])
