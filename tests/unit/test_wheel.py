"""The wheel, in an environment that has only what it asks for, away from the checkout.

No torch, no vLLM, no NVML is in that environment, so these are also the tests that the command,
the plugin and the collection of every test work without them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.unit.interpreters import StandIn

pytest.importorskip("hatchling", reason="hatchling is not installed; next: pip install -e .[dev]")

ROOT = Path(__file__).parents[2]
OURS = "hidden-state-harness"
ABSENT = ("torch", "vllm", "transformers", "speculators", "pynvml")


@dataclass(frozen=True)
class Environment:
    """An environment with the wheel and its dependencies, and a folder to work in."""

    wheel: Path
    bin: Path
    work: Path

    def run(self, *command: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run one of its programs, away from the checkout and without this environment."""
        kept = {"HOME", "LANG", "TMPDIR"}
        done = subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=self.work,
            env={"PATH": f"{self.bin}:/usr/bin:/bin", "COLUMNS": "200"}
            | {name: value for name, value in os.environ.items() if name in kept},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def pytest(self, source: str, *args: str) -> subprocess.CompletedProcess[str]:
        """Run a test file of a user."""
        (self.work / "test_user.py").write_text(source)
        return self.run("python", "-m", "pytest", "test_user.py", "-ra", *args)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder = tmp_path_factory.mktemp("wheel")
    _call(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder))
    (wheel,) = folder.glob("*.whl")
    _call(sys.executable, "-m", "venv", "--without-pip", str(folder / "env"))
    programs = folder / "env" / "bin"
    (packages,) = (folder / "env" / "lib").glob("python*/site-packages")
    for entry in _dependencies(f"{OURS}[test]"):
        # Links instead of an installation: no index is asked, and nothing is copied.
        if not (packages / entry.name).exists():
            (packages / entry.name).symlink_to(entry)
    pip = f"-m pip --quiet --disable-pip-version-check --python {programs / 'python'}"
    _call(sys.executable, *pip.split(), "install", "--no-index", "--no-deps", str(wheel))
    (folder / "work").mkdir()
    (folder / "work" / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    return Environment(wheel, programs, folder / "work")


def _call(*command: str) -> None:
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)


def _dependencies(name: str) -> Iterator[Path]:
    """Yield the installed files and folders that a distribution asks for, itself left out."""
    asked = [Requirement(name)]
    seen: set[tuple[str, frozenset[str]]] = set()
    while asked:
        requirement = asked.pop()
        key = (requirement.name.lower().replace("_", "-"), frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        found = metadata.distribution(requirement.name)
        for text in found.requires or []:
            further = Requirement(text)
            extras = requirement.extras or {""}
            if further.marker is None or any(further.marker.evaluate({"extra": e}) for e in extras):
                asked.append(further)
        if key[0] != OURS:
            files = found.files or []
            tops = {file.parts[0] for file in files} - {"..", "__pycache__"}
            yield from (Path(str(found.locate_file(top))) for top in sorted(tops))


def test_environment_is_as_empty_as_these_tests_believe(environment: Environment) -> None:
    code = f"import importlib.util as u; print([n for n in {ABSENT} if u.find_spec(n)])"
    assert environment.run("python", "-c", code).stdout.strip() == "[]"
    where = environment.run("python", "-c", "import harness; print(harness.__file__)").stdout
    assert where.startswith(str(environment.bin.parent))


def test_wheel_holds_the_package_and_its_data_and_nothing_else(environment: Environment) -> None:
    names = zipfile.ZipFile(environment.wheel).namelist()
    assert "harness/_data/prompts/mixed.jsonl" in names
    assert "harness/inside/engine.py" in names
    assert {name.split("/")[0] for name in names} == {
        "harness",
        "hidden_state_harness-0.1.0.dist-info",
    }
    programs = [name for name in names if name.startswith("harness/_data") and ".py" in name]
    # What `harness gate --rungs cpu` puts into a candidate's environment.
    assert all(name.startswith("harness/_data/stand_ins/") for name in programs)


def test_data_is_found_in_the_installed_package(environment: Environment) -> None:
    code = "from harness.data import data_path; print(data_path('prompts/mixed.jsonl'))"
    found = Path(environment.run("python", "-c", code).stdout.strip())
    assert found.parent.parent.name == "_data"
    assert found.read_bytes() == (ROOT / "fixtures" / "prompts" / "mixed.jsonl").read_bytes()


def test_recorded_surfaces_are_found_in_the_installed_package(environment: Environment) -> None:
    said = json.loads(environment.run("harness", "seams", "show", "0.16.0", "--json").stdout)
    recorded = json.loads((ROOT / "fixtures" / "surfaces" / "0.16.0.json").read_text())
    assert said["digest"] == recorded["digest"]
    code = "from harness.seams import releases; print(len(releases()))"
    files = list((ROOT / "fixtures" / "surfaces").glob("*.json"))
    assert int(environment.run("python", "-c", code).stdout) == len(files)


def test_commands_explain_themselves(environment: Environment) -> None:
    assert "Exit codes" in environment.run("harness", "--help").stdout
    assert "--json" in environment.run("harness", "extract", "--help").stdout
    assert "harness 0.1.0" in environment.run("harness", "--version").stdout


@pytest.fixture(scope="module")
def tiny(environment: Environment) -> Path:
    done = environment.run("harness", "model", "make", "kimi-k2.5-tiny", "tiny", "--json")
    assert json.loads(done.stdout)["fingerprint"].startswith("blake3:")
    return environment.work / "tiny"


def test_model_is_made(tiny: Path) -> None:
    assert (tiny / "config.json").is_file()


def test_plugin_serves_a_users_own_tests(environment: Environment) -> None:
    done = environment.pytest(
        """
import json, struct, sys
import numpy as np
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.kimi]


def test_reader(sample_reader, tmp_path):
    data, ids = np.ones((2, 1, 3), "<f4").tobytes(), np.array([4, 5], "<i8").tobytes()
    header = json.dumps({
        "hidden_states": {"dtype": "F32", "shape": [2, 1, 3], "data_offsets": [0, 24]},
        "token_ids": {"dtype": "I64", "shape": [2], "data_offsets": [24, 40]},
    }).encode()
    path = tmp_path / "hs_0.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + data + ids)
    sample = sample_reader(path)
    assert sample.hidden_states.shape == (2, 1, 3)
    assert sample.token_ids.tolist() == [4, 5]


def test_tiny(tiny_kimi):
    assert json.loads((tiny_kimi / "config.json").read_text())["architectures"] == [
        "KimiK25ForConditionalGeneration"
    ]


@pytest.mark.gpu
def test_on_gpu():
    pass


@pytest.mark.multi_gpu(2)
def test_on_two():
    pass


def test_of_engine(engine):
    pass
"""
    )
    assert "2 passed, 3 skipped" in done.stdout
    assert "no vLLM in" in done.stdout
    assert "no usable GPU" in done.stdout


def test_fixtures_extract_the_packed_prompts(
    environment: Environment, tiny: Path, tmp_path: Path
) -> None:
    stand_in = StandIn(tmp_path)
    done = environment.pytest(
        """
def test_extraction(extraction, engine):
    assert engine.loads == 1
    assert len(extraction.samples) == 13
    assert "_data" in str(extraction.plan.prompts.path)
""",
        f"--hs-python={stand_in.python}",
    )
    assert "1 passed" in done.stdout
    prompts = ROOT / "fixtures" / "prompts" / "mixed.jsonl"
    options = f"--model {tiny} --layers 1,3,4 --out dataset --python {stand_in.python} --json"
    done = environment.run("harness", "extract", "--prompts", str(prompts), *options.split())
    assert json.loads(done.stdout)["samples"] == 13
    assert json.loads(environment.run("harness", "verify", "dataset", "--json").stdout)["ok"]


def test_every_test_is_collected_without_engine_and_drivers(environment: Environment) -> None:
    options = "-m pytest --collect-only -q -p no:cacheprovider"
    done = environment.run("python", *options.split(), str(ROOT / "tests"))
    assert "tests/unit/test_layers.py" in done.stdout
    assert "error" not in done.stdout.splitlines()[-1]
