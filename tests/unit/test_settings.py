"""Settings: the order of sources, what they read, and that defaults have one truth."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from harness import models
from harness.errors import UsageError
from harness.extraction import EngineOptions
from harness.plugin._asked import engine_options
from harness.settings import (
    COMMAND_LINE,
    DEFAULT,
    ENVIRONMENT,
    INI,
    TINY_LAYERS,
    Settings,
    definitions,
    resolve,
)

HERE = Path("/here")
INI_FILE = Path("/project/pytest.ini")


def settings(
    command_line: dict[str, str] | None = None,
    environment: dict[str, str] | None = None,
    ini: dict[str, str] | None = None,
) -> Settings:
    return resolve(
        command_line=command_line or {},
        environment=environment or {},
        ini=ini or {},
        here=HERE,
        ini_file=INI_FILE,
    )


def test_command_line_beats_environment_beats_ini_beats_default() -> None:
    given: dict[str, Any] = {
        "command_line": {"layers": "1"},
        "environment": {"HARNESS_LAYERS": "2", "HARNESS_DIALECT": "hf"},
        "ini": {"layers": "3", "dialect": "sglang", "dtype": "float32"},
    }
    found = settings(**given)
    assert (found.layers, found.dialect, found.dtype, found.capture) == (
        "1",
        "hf",
        "float32",
        "auto",
    )
    assert [found.source(name) for name in ("layers", "dialect", "dtype", "capture")] == [
        COMMAND_LINE,
        ENVIRONMENT,
        INI,
        DEFAULT,
    ]


def test_explain_shows_every_setting_once_beside_its_source() -> None:
    found = settings({"load_deadline": "90"}, {"HARNESS_MODEL": "/m"}, {"require_gpu": "yes"})
    lines = dict(line.split(": ", 1) for line in found.explain())
    assert lines[COMMAND_LINE] == "load_deadline=90"
    assert lines[ENVIRONMENT] == "model=/m"
    assert lines[INI] == "require_gpu=yes"
    shown = " ".join(lines.values()).split()
    assert sorted(part.split("=")[0] for part in shown) == sorted(s.name for s in definitions())


def test_every_field_has_a_definition_and_every_definition_a_field() -> None:
    names = {field.name for field in fields(Settings)} - {"sources"}
    assert names == {setting.name for setting in definitions()}


def test_defaults_are_those_of_the_engine_options() -> None:
    ours, theirs = Settings(), EngineOptions(model=Path("m"))
    shared = {f.name for f in fields(Settings)} & {f.name for f in fields(EngineOptions)}
    assert len(shared) > 8
    for name in shared - {"model", "python"}:
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.python == theirs.python == Path(sys.executable)
    for limit in ("start", "load", "batch", "files", "shutdown"):
        assert getattr(ours, f"{limit}_deadline") == getattr(theirs.deadlines, limit)


def test_help_names_the_default_that_is_in_force() -> None:
    for setting in definitions():
        default = getattr(Settings(), setting.name)
        if setting.name != "python" and default not in (None, False):
            shown = f"{default:g}" if isinstance(default, float) else str(default)
            assert f"default: {shown}" in setting.help, setting.name


def test_tiny_model_has_layers_of_its_own_until_layers_or_a_model_are_given() -> None:
    assert settings().layers == TINY_LAYERS
    assert settings({"layers": "2"}).layers == "2"
    assert settings({"model": "m"}).layers == "speculators-0.9"


def test_relative_paths_start_where_they_were_written() -> None:
    assert settings({"model": "m"}).model == HERE / "m"
    assert settings(environment={"HARNESS_MODEL": "m"}).model == HERE / "m"
    assert settings(ini={"model": "m"}).model == INI_FILE.parent / "m"
    assert settings({"model": "~/m"}).model == Path.home() / "m"
    assert settings({"python": "env/bin/python"}).python == HERE / "env/bin/python"


def test_program_without_a_folder_is_looked_up_on_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python-of-the-box"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert settings({"python": "python-of-the-box"}).python == program
    with pytest.raises(UsageError, match="PATH"):
        settings({"python": "python-of-nobody"})


@pytest.mark.parametrize(
    ("text", "lease"),
    [("k25", "k25"), ("auto", "auto"), ("yes", "auto"), ("no", None), ("0", None)],
)
def test_attach_names_a_lease_the_only_one_or_none(text: str, lease: str | None) -> None:
    assert settings({"attach": text}, ini={"attach": "other"}).attach == lease


def test_empty_variable_counts_as_not_set() -> None:
    assert settings(environment={"HARNESS_LAYERS": ""}, ini={"layers": "4"}).layers == "4"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("tensor_parallel_size", "two", "whole number"),
        ("tensor_parallel_size", "0", "whole number"),
        ("max_model_len", "-3", "whole number"),
        ("load_deadline", "0", "seconds above 0"),
        ("load_deadline", "nan", "seconds above 0"),
        ("load_deadline", "inf", "seconds above 0"),
        ("load_deadline", "soon", "seconds above 0"),
        ("gpu_memory_utilization", "1.5", "share"),
        ("gpu_memory_utilization", "85%", "share"),
        ("require_gpu", "perhaps", "yes or no"),
        ("layers", " ", "a value"),
        ("attach", "tests/unit", "the name of a lease"),
    ],
)
@pytest.mark.parametrize("source", ["command_line", "environment", "ini"])
def test_bad_value_names_where_it_stands(name: str, text: str, expected: str, source: str) -> None:
    key = f"HARNESS_{name.upper()}" if source == "environment" else name
    option = "--hs-" + name.replace("_", "-")
    where = {"command_line": option, "environment": key, "ini": f"hs_{name} in {INI_FILE}"}
    with pytest.raises(UsageError) as caught:
        resolve(
            **{"command_line": {}, "environment": {}, "ini": {}, source: {key: text}},
            here=HERE,
            ini_file=INI_FILE,
        )
    failure = caught.value.failure
    assert failure.id == "settings.bad-value"
    assert expected in failure.expected
    assert repr(text) in failure.found
    assert failure.where == where[source]
    assert option in failure.next


@pytest.mark.parametrize(("text", "value"), [("1", True), ("Yes", True), ("off", False)])
def test_flag_reads_common_words(text: str, value: bool) -> None:
    assert settings(environment={"HARNESS_REQUIRE_GPU": text}).require_gpu is value


@pytest.mark.parametrize(
    ("given", "layers"), [({}, "2,3,5"), ({"layers": "eagle3"}, "eagle3"), ({"layers": "1"}, "1")]
)
def test_shallow_model_has_ids_where_nobody_named_layers(
    given: dict[str, str], layers: str, tmp_path: Path
) -> None:
    model = models.make("kimi-k2.5-slice", tmp_path / "slice", layers=6)
    made = settings({"model": str(model), **given})
    assert engine_options(made, model).layers == layers


def test_tiny_model_of_the_session_has_its_own_layers(tmp_path: Path) -> None:
    assert engine_options(settings(), tmp_path).layers == TINY_LAYERS
