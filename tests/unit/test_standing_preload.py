"""The static rung before a load: what cannot work is refused in time, and only that."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness import state
from harness.cli import app
from harness.doctor import Check
from harness.errors import ExitCode, Refused
from harness.standing import preload
from tests.unit.edited import installed
from tests.unit.interpreters import StandIn
from tests.unit.plugins import Inner, inner
from tests.unit.surgery import rename

__all__ = ["inner"]
pytest_plugins = ["pytester"]

KIMI = "KimiK25ForConditionalGeneration"
CONNECTOR = "vllm/distributed/kv_transfer/kv_connector/v1/example_hidden_states_connector.py"
WRAPPER = "vllm/model_executor/models/kimi_k25.py"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files at the seams of the installed vLLM, in a folder of their own."""
    root = tmp_path_factory.mktemp("site")
    release = installed()
    release.write(root)
    (root / "vllm" / "__init__.py").touch()
    text = f"__version__ = version = '{release.named.release}'\n"
    (root / "vllm" / "_version.py").write_text(text)
    return root


@pytest.fixture
def package(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy that a test may edit, and a state folder of its own."""
    monkeypatch.setenv(state.VARIABLE, str(tmp_path / "state"))
    monkeypatch.delenv(preload.SKIP, raising=False)
    return shutil.copytree(whole, tmp_path / "site") / "vllm"


def _edit(package: Path, path: str, name: str, new: str) -> None:
    file = package.parent / path
    file.write_text(rename(name, new)(file.read_text(encoding="utf-8")), encoding="utf-8")


def _ask(package: Path, capture: str, *, architecture: str = KIMI, skip: bool = False) -> None:
    preload.require_static(
        package, capture, python=Path("/env/python"), architecture=architecture, skip=skip
    )


def test_a_release_that_serves_both_captures_is_let_through_and_remembered(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _ask(package, "native")
    monkeypatch.setattr(preload, "read_surface", None)
    started = time.process_time()
    _ask(package, "patched")
    _ask(package, "native")
    assert time.process_time() - started < 0.5
    monkeypatch.undo()


def test_a_broken_seam_is_refused_by_name_for_the_capture_that_needs_it(package: Path) -> None:
    _edit(package, CONNECTOR, "ExampleHiddenStatesConnector._submit_async_write", "_write_soon")
    with pytest.raises(Refused) as refused:
        _ask(package, "native")
    assert refused.value.failure.id == "gate.refused"
    assert refused.value.exit_code == ExitCode.REFUSED
    assert "connector._submit_async_write" in refused.value.failure.found
    assert "harness gate --python /env/python" in refused.value.failure.next
    _ask(package, "patched")
    _ask(package, "none")


def test_memory_ends_with_the_files_that_it_came_from(package: Path) -> None:
    _ask(package, "native")
    _edit(package, CONNECTOR, "extract_from_kv_cache", "gather_from_kv_cache")
    with pytest.raises(Refused, match=r"connector\.extract"):
        _ask(package, "native")
    with pytest.raises(Refused, match=r"connector\.extract"):
        _ask(package, "native")


def test_broken_memory_is_not_believed(package: Path, tmp_path: Path) -> None:
    _ask(package, "native")
    (record,) = (tmp_path / "state" / preload.FOLDER).glob("*.json")
    body = json.loads(record.read_text())
    record.write_text(json.dumps({**body, "surface": body["surface"].replace("ExampleH", "X")}))
    _ask(package, "native")


def test_a_model_that_is_not_loaded_refuses_nothing(package: Path) -> None:
    _edit(package, WRAPPER, KIMI, "KimiK25ForGeneration")
    _ask(package, "native", architecture="DeepseekV3ForCausalLM")
    with pytest.raises(Refused, match="kimi"):
        _ask(package, "native")


def test_check_can_be_left_out(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _edit(package, CONNECTOR, "extract_from_kv_cache", "gather_from_kv_cache")
    _ask(package, "native", skip=True)
    monkeypatch.setenv(preload.SKIP, "1")
    _ask(package, "native")
    monkeypatch.setenv(preload.SKIP, "0")
    with pytest.raises(Refused):
        _ask(package, "native")


def test_state_folder_that_cannot_be_written_costs_a_second_and_nothing_else(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(state.VARIABLE, str(tmp_path / "file" / "state"))
    _ask(package, "native")


@pytest.fixture
def broken(package: Path, tmp_path: Path) -> StandIn:
    """An interpreter whose vLLM lacks what the native capture touches."""
    _edit(package, CONNECTOR, "extract_from_kv_cache", "gather_from_kv_cache")
    made = StandIn(tmp_path / "interpreter")
    facts = json.loads((made.folder / "facts.json").read_text())
    facts["vllm"]["path"] = str(package)
    (made.folder / "facts.json").write_text(json.dumps(facts))
    return made


def test_extract_is_refused_before_anything_starts(
    broken: StandIn, tiny_kimi: Path, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": "a", "input_ids": [1, 2, 3]}\n')
    words = ["extract", "--model", str(tiny_kimi), "--prompts", str(prompts), "--layers", "1,3"]
    words += ["--out", str(tmp_path / "out"), "--python", str(broken.python), "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == ExitCode.REFUSED, done.output
    assert json.loads(done.stdout)["error"]["id"] == "gate.refused"
    assert not (tmp_path / "out").exists()
    assert broken.engines() == []
    assert CliRunner().invoke(app, [*words, "--skip-gate", "--dry-run"]).exit_code == 0
    assert CliRunner().invoke(app, [*words, "--capture", "patched", "--dry-run"]).exit_code == 0


def test_doctor_sees_what_extract_would_refuse_and_takes_what_it_takes(
    broken: StandIn, tiny_kimi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.doctor._tokenizer", lambda *_: ())
    monkeypatch.setattr(
        "harness.doctor._configuration", lambda plan, _: Check("end", "ok", plan.session.name)
    )
    words = ["doctor", "--model", str(tiny_kimi), "--layers", "1,3"]
    words += ["--python", str(broken.python), "--json"]

    def last(*more: str) -> dict[str, str]:
        check: dict[str, str] = json.loads(CliRunner().invoke(app, [*words, *more]).stdout)[
            "checks"
        ][-1]
        return check

    assert last()["state"] == "fail"
    assert "--skip-gate" in last()["next"]
    assert last("--skip-gate")["found"] == "native"
    assert last("--capture", "patched")["found"] == "patched"


def test_engine_fixture_is_refused_before_anything_starts(inner: Inner, broken: StandIn) -> None:
    use = "def test_use(engine):\n    engine.hidden_states([[1, 2, 3]])\n"
    result = inner.run(use, python=broken)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*gate.refused*", "*connector.extract*", "*harness gate*"])
    assert broken.engines() == []
    inner.run(use, "--hs-skip-gate", python=broken).assert_outcomes(passed=1)
