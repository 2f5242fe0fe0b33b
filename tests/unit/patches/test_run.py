"""``harness patches run``: in force in the script and in every process that it starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

import pytest

from harness.errors import CheckFailed, UsageError
from harness.patches import Patch, by_id, patched_environment, run_patched
from harness.patches._modules import GENERATOR as GENERATOR_NAME

CHOSEN = ("layer-order", "eagle3-check")
GENERATOR = """
    class VllmHiddenStatesGenerator:
        layer_ids = [5, 1]
        def generate(self, ids):
            return [{"hidden_states": ["one", "five"]}]
"""
EXTENSION = """
    def supports_eagle3(model):
        return False
"""
SCRIPT = """
    import multiprocessing, os, sys
    def worker():
        from speculators.data_generation import custom_worker
        class Base:
            layers = norm = start_layer = end_layer = None
        os._exit(10 + custom_worker.supports_eagle3(Base()))
    if __name__ == "__main__":
        from speculators.data_generation import vllm_hidden_states_generator as module
        import inspect
        assert "five" in inspect.getsource(module)
        print(module.VllmHiddenStatesGenerator().generate([])[0]["hidden_states"])
        process = multiprocessing.get_context(sys.argv[1]).Process(target=worker)
        process.start()
        process.join()
        print(process.exitcode, os.environ.get("OWN", "no sitecustomize of its own"))
        sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script and a package that calls itself speculators."""
    package = tmp_path / "site" / "speculators" / "data_generation"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").write_text("")
    (package / "vllm_hidden_states_generator.py").write_text(dedent(GENERATOR))
    (package / "custom_worker.py").write_text(dedent(EXTENSION))
    (tmp_path / "script.py").write_text(dedent(SCRIPT))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    return tmp_path


def patches(*ids: str) -> list[Patch]:
    return [by_id(id) for id in ids]


def go(box: Path, *args: str, chosen: Sequence[str] = CHOSEN) -> int:
    return run_patched([sys.executable, str(box / "script.py"), *args], patches(*chosen))


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_patches_are_in_force_in_the_script_and_in_its_workers(
    box: Path, method: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert go(box, method, "0") == 0
    out, err = capfd.readouterr()
    assert out.splitlines() == ["['five', 'one']", "11 no sitecustomize of its own"]
    assert "vllm_hidden_states_generator: in force: layer-order" in err
    assert "custom_worker: in force: eagle3-check" in err


def test_without_patches_the_script_is_as_it_was(
    box: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert go(box, "spawn", "0", chosen=()) == 0
    out, err = capfd.readouterr()
    assert out.splitlines() == ["['one', 'five']", "10 no sitecustomize of its own"]
    assert "harness patches" not in err


def test_exit_code_of_the_script_is_passed_through() -> None:
    code = ["-c", "import sys; sys.exit(41)"]
    assert run_patched([sys.executable, *code], patches("layer-order")) == 41


def test_another_interpreter_stands_in_for_a_python_and_for_nothing_else(tmp_path: Path) -> None:
    code = ["-c", "import sys; sys.exit(3)"]
    here = Path(sys.executable)
    assert run_patched(["python-that-is-not-there", *code], patches(), python=here) == 3
    launcher = tmp_path / "launch"
    launcher.write_text(f"#!/bin/sh\n{here} -c pass\nexit 9\n")
    launcher.chmod(0o755)
    assert run_patched([str(launcher)], patches(), python=here) == 9


def test_script_killed_by_a_signal_gives_the_shells_code(tmp_path: Path) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert run_patched([sys.executable, "-c", code], patches()) == 128 + signal.SIGKILL


def test_sitecustomize_of_the_environment_still_runs(
    box: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (box / "site" / "sitecustomize.py").write_text("import os; os.environ['OWN'] = 'its own'\n")
    assert go(box, "spawn", "0") == 0
    assert capfd.readouterr().out.splitlines()[-1] == "11 its own"


def test_a_patch_that_does_not_fit_fails_the_import_and_so_the_script(
    box: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert go(box, "spawn", "0", chosen=("layer-order", "two-phase")) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert "patches.missing-anchor" in err
    assert "MultiprocExecutor" in err


@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_a_python_that_passes_the_hook_by_is_a_failure_and_never_a_quiet_success(
    option: str,
) -> None:
    with pytest.raises(CheckFailed, match=r"patches\.not-started"):
        run_patched([sys.executable, option, "-c", "pass"], patches())


def test_looking_for_a_module_before_and_loading_it_again_change_nothing(
    box: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = f"""
        import importlib, importlib.util
        name = {GENERATOR_NAME!r}
        assert importlib.util.find_spec(name) is not None
        for load in (importlib.import_module, lambda name: importlib.reload(module)):
            module = load(name)
            print(module.VllmHiddenStatesGenerator().generate([])[0]["hidden_states"])
    """
    code = run_patched([sys.executable, "-c", dedent(script)], patches("layer-order"))
    assert code == 0
    assert capfd.readouterr().out.splitlines() == ["['five', 'one']"] * 2


def test_a_module_of_the_scripts_own_that_is_called_harness_is_named(
    box: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (box / "harness").mkdir()
    (box / "harness" / "__init__.py").write_text("")
    assert go(box, "spawn", "0") == 1
    err = capfd.readouterr().err
    assert "A module of the script's own that is called harness" in err
    assert str(box / "harness") in err


def test_nothing_to_run_is_a_usage_error(tmp_path: Path) -> None:
    no_program = tmp_path / "text"
    no_program.write_text("hello\n")
    no_program.chmod(0o755)
    for words in ([], ["no-such-program-here"], [str(no_program)]):
        with pytest.raises(UsageError, match="harness patches run -- python"):
            run_patched(words, patches())


def test_variables_that_a_patch_needs_are_set_unless_the_user_set_them() -> None:
    chosen = patches("rows-by-request")
    with patched_environment(chosen, env={}) as env:
        assert env["VLLM_USE_V2_MODEL_RUNNER"] == "0"
        assert env["HARNESS_PATCHES_TRUST_REMOTE_CODE"] == "0"
    given = {"VLLM_USE_V2_MODEL_RUNNER": "1", "PYTHONPATH": "/mine"}
    with patched_environment(chosen, trust_remote_code=True, env=given) as env:
        assert env["VLLM_USE_V2_MODEL_RUNNER"] == "1"
        assert env["HARNESS_PATCHES_TRUST_REMOTE_CODE"] == "1"
        assert env["PYTHONPATH"].split(os.pathsep)[-1] == "/mine"
        link = Path(env["PYTHONPATH"].split(os.pathsep)[1])
        assert (link / "harness" / "patches").is_dir()
    assert not link.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_script_decides_what_a_signal_means(tmp_path: Path, number: signal.Signals) -> None:
    mark = tmp_path / "ended"
    script = (
        "import pathlib, signal, sys, time\n"
        "def end(*_):\n"
        f"    pathlib.Path({str(mark)!r}).touch(); sys.exit(7)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        f"pathlib.Path({str(tmp_path / 'up')!r}).touch()\n"
        "time.sleep(60)\n"
    )
    code = (
        "import sys; from harness.patches import run_patched;"
        f"sys.exit(run_patched([sys.executable, '-c', {script!r}], []))"
    )
    child = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 20
    while not (tmp_path / "up").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    child.send_signal(number)
    if number == signal.SIGINT:
        # A terminal sends it to the script as well; the command waits for the script's answer.
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.3)
        child.terminate()
    assert child.wait(20) == 7
    assert mark.exists()
