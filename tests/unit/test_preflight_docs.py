"""docs/preflight.md says what the code does."""

from __future__ import annotations

from pathlib import Path

from harness.preflight import CHECKS
from harness.preflight._page import page

PAGE = Path(__file__).parents[2] / "docs" / "preflight.md"


def test_the_page_is_made_from_the_checks() -> None:
    assert PAGE.read_text() == page(), "harness preflight --markdown > docs/preflight.md"


def test_every_check_has_an_id_a_threshold_and_a_reason_of_its_own() -> None:
    assert len({check.id for check in CHECKS}) == len(CHECKS)
    for check in CHECKS:
        assert check.id.count(".") == 1
        assert all((check.what, check.threshold, check.reason))
