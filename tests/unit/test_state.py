"""The state folder and its records."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness import state
from harness.errors import Refused


def test_the_variable_names_the_folder(tmp_path: Path) -> None:
    assert state.state_folder({state.VARIABLE: str(tmp_path / "s")}) == tmp_path / "s"


def test_asking_for_the_folder_creates_nothing(tmp_path: Path) -> None:
    state.state_folder({"XDG_STATE_HOME": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []


def test_a_record_comes_back_and_goes(tmp_path: Path) -> None:
    path = tmp_path / "engines" / "a.json"
    state.write_record(path, {"pid": 1})
    state.write_record(path, {"pid": 2})
    assert list(state.records(path.parent)) == [(path, {"pid": 2})]
    state.drop_record(path)
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("text", ["", "{", "[]", "\xff", "[" * 100_000])
def test_a_broken_record_is_no_record(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(text.encode("latin-1"))
    assert state.read_record(path) is None
    assert list(state.records(tmp_path)) == []


def test_what_cannot_be_read_is_told_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "half.json").write_text("{")
    found = list(state.entries(tmp_path))
    assert found == [(tmp_path / "half.json", None), (tmp_path / "pipe.json", None)]


def test_a_file_in_the_state_folders_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match="HARNESS_STATE"):
        list(state.records(tmp_path / "file" / state.ENGINES))


def test_an_unwritable_folder_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match="HARNESS_STATE") as caught:
        state.write_record(tmp_path / "file" / "a.json", {})
    assert caught.value.failure.id == "state.unwritable"


def test_a_record_that_does_not_fit_json_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        state.write_record(tmp_path / "a.json", {"x": object()})
    assert list(tmp_path.iterdir()) == []
