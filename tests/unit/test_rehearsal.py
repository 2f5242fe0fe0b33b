"""The rehearsal: the whole job on a few layers, told apart from the load, and gone afterwards."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from harness import models
from harness.cli import app
from harness.errors import HarnessError
from harness.extraction import EngineOptions
from harness.rehearsal import Rehearsal, rehearse
from harness.rehearsal.run import short_depths
from tests.unit.checkpoints import TINY
from tests.unit.interpreters import StandIn
from tests.unit.plugins import Inner, inner

__all__ = ["inner"]
pytest_plugins = ["pytester"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.make(TINY, tmp_path_factory.mktemp("whole") / "model", weights="load")


@pytest.fixture
def stand_in(tmp_path: Path) -> StandIn:
    return StandIn(tmp_path / "python")


class Stage:
    """Rehearses with a stand-in."""

    def __init__(self, folder: Path, model: Path, stand_in: StandIn) -> None:
        self.disk, self.log = folder / "disk", folder / "rehearsal.log"
        self.disk.mkdir()
        self.options = {"model": model, "python": stand_in.python, "layers": "3,1,5"}

    def __call__(self, kept: int = 4, **changes: Any) -> Rehearsal:
        options = EngineOptions(**(self.options | changes))
        return rehearse(options, disk=self.disk, log=self.log, layers=kept, longest_prompt=40)


@pytest.fixture
def stage(tmp_path: Path, whole: Path, stand_in: StandIn) -> Stage:
    return Stage(tmp_path, whole, stand_in)


def test_rehearsal_does_the_whole_job_once_and_leaves_nothing(
    stage: Stage, stand_in: StandIn
) -> None:
    found = stage()
    assert (found.layers, found.of_layers) == (4, 6)
    # 3, 1, 5 and L of six layers, in the caller's order.
    assert found.depths == (2, 1, 3, 4)
    assert found.samples
    assert found.tokens >= found.samples
    assert stand_in.loads == 1
    assert not stand_in.running()
    assert not list(stage.disk.iterdir())
    assert not stage.log.exists()
    text = found.explain()
    assert "4 of 6 layers at full width" in text
    assert "not rehearsed: the checkpoint's own weights" in text


@given(
    st.lists(st.integers(1, 61), min_size=1, max_size=8, unique=True),
    st.integers(0, 3),
)
def test_depths_of_a_cut_model_keep_number_order_and_the_last(
    depths: list[int], spare: int
) -> None:
    whole = 61
    kept = len(depths) + (whole not in depths) + spare
    found = short_depths(tuple(depths), whole, kept)
    assert len(set(found)) == len(depths)
    assert all(1 <= depth <= kept for depth in found)
    pairs = zip(depths, found, strict=True)
    for (one, short), (other, shorter) in itertools.combinations(pairs, 2):
        assert (one < other) == (short < shorter)
    assert (kept in found) == (whole in depths)


def test_more_depths_than_layers_keep_more_layers(stage: Stage) -> None:
    assert stage(layers="1,2,3,5", kept=2).layers == 5


def test_model_that_is_as_small_is_refused_before_an_engine_starts(
    stage: Stage, stand_in: StandIn
) -> None:
    with pytest.raises(HarnessError) as caught:
        stage(kept=6)
    assert caught.value.failure.id == "rehearsal.nothing-to-cut"
    assert stand_in.loads == 0
    assert not list(stage.disk.iterdir())


@pytest.mark.parametrize(
    ("behaviour", "id"),
    [
        ({"canary": "wrong"}, "canary.failed"),
        ({"load": "die"}, "host.engine-died"),
        ({"extract": "wrong"}, "rehearsal.sample-refused"),
    ],
)
def test_failure_is_told_as_the_rehearsals_and_its_log_stays(
    stage: Stage, stand_in: StandIn, behaviour: dict[str, str], id: str
) -> None:
    stand_in.behave(**behaviour)
    with pytest.raises(HarnessError) as caught:
        stage()
    assert caught.value.failure.id == id
    assert caught.value.failure.where.startswith("rehearsal, before the load: ")
    assert stage.log.exists()
    assert not list(stage.disk.iterdir())
    assert not stand_in.running()


def test_disk_that_cannot_be_written_is_refused_before_an_engine_starts(
    stage: Stage, stand_in: StandIn
) -> None:
    stage.disk = stage.disk / "missing"
    with pytest.raises(HarnessError) as caught:
        stage()
    assert caught.value.failure.id == "rehearsal.cannot-write"
    assert stand_in.loads == 0


def test_extract_rehearses_before_a_load_and_only_then(
    tmp_path: Path, whole: Path, stand_in: StandIn
) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"id": "a", "input_ids": [1, 2, 3]}\n')
    arguments = ["extract", "--model", str(whole), "--layers", "1,3", "--dtype", "float32"]
    arguments += ["--prompts", str(tmp_path / "prompts.jsonl"), "--out", str(tmp_path / "out")]
    arguments += ["--python", str(stand_in.python), "--rehearse"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "4 of 6 layers at full width" in done.output
    assert stand_in.loads == 2
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 0, again.output
    assert stand_in.loads == 2
    # What is left to do is a load again.
    next((tmp_path / "out").glob("hs_*.safetensors")).unlink()
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert stand_in.loads == 4
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"prompts.jsonl", "out", "python"}


def test_extraction_whose_rehearsal_fails_leaves_its_log_and_no_folder(
    tmp_path: Path, whole: Path, stand_in: StandIn
) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"id": "a", "input_ids": [1, 2, 3]}\n')
    stand_in.behave(canary="wrong")
    arguments = ["extract", "--model", str(whole), "--layers", "1,3", "--rehearse"]
    arguments += ["--prompts", str(tmp_path / "prompts.jsonl"), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*arguments, "--python", str(stand_in.python)])
    assert done.exit_code == 1, done.output
    assert "rehearsal, before the load" in done.output
    assert stand_in.loads == 1
    assert {path.name for path in tmp_path.iterdir()} == {
        "prompts.jsonl",
        "python",
        "out.rehearsal.log",
    }


def test_session_rehearses_before_its_load_and_counts_one(inner: Inner) -> None:
    result = inner.run("def test_it(engine): assert engine.loads == 1", "--hs-rehearse")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["harness: rehearsal: *", "engine: 1 load in *", "engine: rehearsed in * 4 of 6 layers*"]
    )
    assert inner.python.loads == 2


def test_session_whose_rehearsal_fails_loads_nothing(inner: Inner) -> None:
    inner.python.behave(canary="wrong")
    result = inner.run("def test_it(engine): pass", "--hs-rehearse")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*rehearsal, before the load*"])
    assert inner.python.loads == 1


def test_rehearse_says_what_it_saw_in_one_object(
    tmp_path: Path, whole: Path, stand_in: StandIn
) -> None:
    arguments = ["rehearse", "--model", str(whole), "--layers", "1,3", "--json"]
    arguments += ["--python", str(stand_in.python), "--disk", str(tmp_path), "--keep", "3"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["layers"], found["of_layers"], found["depths"]) == (3, 6, [1, 2, 3])
    assert found["unproved"]
