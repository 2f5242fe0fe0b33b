"""What the lines of ``vllm.envs`` tell of a variable is what the parsed module says, or nothing."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from harness.seams import read_surface
from harness.seams._envs import Variables
from harness.seams._parts import Names
from harness.seams.seam import Kind, Seam
from tests.unit.edited import installed

CHECKED = """import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    VLLM_A: int = 1
    VLLM_B: str | None = None
    VLLM_LONG: dict = {
        1: 2,
    }


def f(): ...


"""
TABLE = """environment_variables: dict[str, object] = {
    # VLLM_A: the first, (which opens and does not close
    "VLLM_A": lambda: int(os.getenv("VLLM_A", ")")),
    "VLLM_B": lambda: (
        os.getenv("VLLM_B")
    ),
    "VLLM_LONG": lambda: {},
    "VLLM_UNTOLD": lambda: 1,
}
"""


def test_variables_and_defaults_are_told_by_the_lines() -> None:
    found = Variables.of(CHECKED + TABLE)
    assert found is not None
    assert found.names == {"VLLM_A", "VLLM_B", "VLLM_LONG", "VLLM_UNTOLD"}
    one = found.default("VLLM_A")
    assert one is not None
    assert ast.unparse(one) == "1"
    assert found.default("VLLM_UNTOLD") is None


@pytest.mark.parametrize(
    "text",
    [
        CHECKED,
        CHECKED + TABLE + "\n\nif f():\n    environment_variables = {}\n",
        CHECKED + TABLE.replace("= {\n", "= dict(a={\n").replace("\n}\n", "\n})\n"),
        CHECKED + TABLE.replace("lambda: {},", '{"a": 1,').replace("lambda: 1,", "1},"),
        CHECKED + TABLE.replace("lambda: 1", '"""\n    "VLLM_C": 1,\n    """'),
        CHECKED + TABLE.replace("    ", "\t"),
        CHECKED + TABLE.replace("    # VLLM_A", '    **{"x": 1},  # VLLM_A'),
        CHECKED + TABLE.removesuffix("}\n"),
    ],
    ids=["none", "two", "call", "nested", "text", "tabs", "spread", "open"],
)
def test_a_table_of_another_shape_is_left_to_the_parser(text: str) -> None:
    assert Variables.of(text) is None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (CHECKED + TABLE, "VLLM_LONG"),
        (CHECKED + "VLLM_A = 2\n" + TABLE, "VLLM_A"),
        (CHECKED.replace("if TYPE_CHECKING:", "class C:") + TABLE, "VLLM_A"),
        (CHECKED.replace("VLLM_A: int = 1", "VLLM_A = VLLM_Z = 1") + TABLE, "VLLM_A"),
        (CHECKED.replace("TYPE_CHECKING\n", "VLLM_B\n") + TABLE, "VLLM_B"),
    ],
    ids=["lines", "again", "class", "both", "import"],
)
def test_a_default_that_one_line_does_not_tell_is_left_to_the_parser(text: str, name: str) -> None:
    found = Variables.of(text)
    assert found is not None
    with pytest.raises(LookupError):
        found.default(name)


@pytest.mark.parametrize("name", ["VLLM_A", "VLLM_B", "VLLM_LONG", "VLLM_UNTOLD", "VLLM_GONE"])
@pytest.mark.parametrize("shape", ["plain", "nested", "again"])
def test_a_variable_is_read_as_from_the_parsed_module(
    name: str, shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {
        "nested": TABLE.replace("lambda: {},", '{"a": 1,').replace("lambda: 1,", "1},"),
        "again": TABLE + "\n\nVLLM_B = 3\n",
    }.get(shape, TABLE)
    package = tmp_path / "vllm"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "envs.py").write_text(CHECKED + table)
    seams = [Seam("v", Kind.ENV, (f"vllm.envs:{name}",), ())]

    def read() -> object:
        return read_surface(tmp_path, release="9.9.9", seams=seams).entry("v")

    told = read()
    monkeypatch.setattr(Variables, "of", staticmethod(lambda _: None))
    assert told == read()


def test_the_installed_table_is_told_as_it_is() -> None:
    text = installed().text("vllm/envs.py")
    whole = Names.of(text, whole=True)
    (table,) = whole.get("environment_variables")
    keys = getattr(getattr(table.value, "value", None), "keys", [])
    found = Variables.of(text)
    assert found is not None
    assert found.names == {key.value for key in keys} != set()
    for name in found.names:
        candidates = [getattr(one.value, "value", None) for one in whole.get(name)]
        try:
            told = found.default(name)
        except LookupError:
            continue
        known = candidates[0] if candidates else None
        assert (told and ast.dump(told)) == (known and ast.dump(known)), name
