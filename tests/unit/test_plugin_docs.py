"""What docs/fixtures.md promises, held to what there is."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from harness.plugin.engine import Engine
from harness.plugin.extraction import Extraction, Samples
from harness.plugin.sample import Sample
from harness.settings import definitions
from tests.unit.plugins import Inner, inner

__all__ = ["inner"]
pytest_plugins = ["pytester"]

TEXT = (Path(__file__).parents[2] / "docs" / "fixtures.md").read_text()


def section(title: str) -> str:
    """Return the text under one heading."""
    found = re.search(rf"^#+ {title}\n(.*?)(?=^#|\Z)", TEXT, flags=re.M | re.S)
    assert found is not None, title
    return found.group(1)


def test_example_runs_as_it_stands(inner: Inner) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", section("A test file of yours"), flags=re.S)
    inner.run(example).assert_outcomes(passed=2, skipped=1)


def test_every_setting_is_in_the_table_with_all_its_names() -> None:
    rows = [line.split("|")[1:4] for line in section("Settings").splitlines() if "| `--" in line]
    names = [tuple(cell.strip().strip("`") for cell in row) for row in rows]
    assert names == [(s.option, s.variable, s.ini) for s in definitions()]


@pytest.mark.parametrize(
    ("title", "public"),
    [("`Engine`", Engine), ("`Sample`", Sample), ("`Extraction`", Extraction)],
)
def test_every_documented_member_is_there(title: str, public: type) -> None:
    members = re.findall(r"^\| `(\w+)", section(title), flags=re.M)
    known = set(dir(public)) | set(getattr(public, "__dataclass_fields__", {}))
    if public is Engine:
        known |= {"plan", "log", "failure"}  # set when it is made
    assert members
    assert set(members) <= known


def test_every_field_of_a_sample_is_documented() -> None:
    members = re.findall(r"^\| `(\w+)", section("`Sample`"), flags=re.M)
    assert {field.name for field in fields(Sample)} <= set(members)
    assert {"ids", "named"} <= set(dir(Samples))


def test_every_fixture_and_marker_is_documented(inner: Inner) -> None:
    fixtures = re.findall(r"^\| `(\w+)`", section("Fixtures"), flags=re.M)
    inner.pytester.makepyfile("")
    shown = inner.pytester.runpytest_inprocess("-p", "harness.plugin", "--fixtures").stdout.str()
    ours = shown.split("fixtures defined from harness.plugin._fixtures")[1]
    assert sorted(re.findall(r"^(\w+) \[session scope\]", ours, flags=re.M)) == sorted(fixtures)
    markers = re.findall(r"^\| `(\w+)", section("Markers"), flags=re.M)
    shown = inner.pytester.runpytest_inprocess("-p", "harness.plugin", "--markers").stdout.str()
    assert set(markers) == {"engine", "gpu", "multi_gpu", "kimi", "slow"}
    assert all(f"@pytest.mark.{name}" in shown for name in markers)
