"""Contracts of the inventory: no touch of vLLM, ours or of an installed consumer, is missing.

Names, calls and members are read from the syntax. An attribute of an object whose class the syntax
does not tell is held by its name: it is a seam's, or the code itself defines it, or it stands in
one of the lists below, where a reviewer has said whose it is.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

from harness.seams import Call, Consumer, used_by
from harness.seams._probes_engine import EXTENSION
from tests.unit.touches import Touches, touches_of

ROOT = Path(__file__).parents[2]
INSIDE = ROOT / "harness" / "inside"
PATCHES = ROOT / "harness" / "patches"
RECIPE = ROOT / "harness" / "recipe"
V03, V04 = Consumer.SPECULATORS_0_3, Consumer.SPECULATORS_0_4

# What the library calls by another object's name.
_ALIASES = {"vllm.platforms.current_platform.": "vllm.platforms.interface.Platform."}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_BUILTIN = {
    name
    for kind in (str, bytes, list, dict, set, tuple, int, float, Path, ModuleType, FunctionType,
                 BaseException, OSError, type)
    for name in dir(kind)
}  # fmt: skip
_PYTHON = _words(
    """
    Event acquire args asname attr body cancel comparators done digest empty error exception
    exitcode fileno flush func getvalue group groupdict hexdigest info debug warning isoformat
    is_alive is_set kind left lineno loader notify_all ops parameters pid posonlyargs prctl
    read readline recv returncode result seek send sendall sentinel set set_inheritable si_code
    si_status shutdown start stderr stdin stdout submit submodule_search_locations target
    terminate default wait wait_for write bind __loader__ __path__ __spec__ __module__ __name__
    __mro__ _children _popen fullmatch span exec_module annotation search finditer release
    """
)
_TORCH = _words(
    """
    Stream add_ all any buffers clamp_min clone contiguous copy_ cpu data device element_size eval
    flatten flip float gather is_cuda isfinite itemsize log_softmax manual_seed masked_fill max min
    modules mul_ named_parameters nan_to_num nonzero numel numpy parameters pin_memory record
    record_stream register_forward_hook register_forward_pre_hook register_parameter remove
    requires_grad_ reshape scatter_ shape sigmoid storage_offset stream stride sub_ sum synchronize
    to tobytes tolist topk transpose type unsqueeze view wait_event wait_stream weight detach stack
    names zero_
    """
)
_TRANSFORMERS = _words(
    """
    PreTrainedConfig PretrainedConfig _experts_implementation apply_chat_template architectures
    chat_template config config_class e_score_correction_bias eos_token_id from_pretrained
    is_fast lm_head n_group num_experts_per_tok num_hidden_layers text_config topk_group
    eagle_aux_hidden_state_layer_ids
    """
)
_COMPRESSED_TENSORS = _words(
    """
    actorder num_bits symmetric
    """
)
_SPECULATORS = _words(
    """
    _extension _layer_ids executor layer_ids scheduler
    """
)
# Asked with getattr, for a report only: without them it says nothing of attention or experts.
_REPORT_ONLY = _words(
    """
    impl quant_method is_transposed
    """
)
NOT_VLLM = _BUILTIN.union(
    _PYTHON, _TORCH, _TRANSFORMERS, _COMPRESSED_TENSORS, _SPECULATORS, _REPORT_ONLY
)


def _installed(lane: str, package: str) -> list[Path]:
    site = next(iter((ROOT / ".venv" / lane).glob("lib/python*/site-packages")), None)
    if site is None or not (site / package).is_dir():
        pytest.skip(f"no {package} in .venv/{lane}; next: make {lane}")
    return sorted((site / package).rglob("*.py"))


def _touching(files: Iterable[Path]) -> dict[Path, Touches]:
    """Return the files that name vLLM at all, read."""
    found = {file: touches_of(file) for file in files if "vllm" in file.read_text("utf-8")}
    return {file: touches for file, touches in found.items() if touches.names}


def _plain(path: str) -> str:
    place = path.replace(":", ".")
    for alias, name in _ALIASES.items():
        place = place.replace(alias, name)
    return place


def missing(
    touched: dict[Path, Touches], consumers: Iterable[Consumer], own: set[str]
) -> list[str]:
    """Return every touch that the inventory does not have for these consumers."""
    seams = [seam for consumer in consumers for seam in used_by(consumer)]
    places = {_plain(path) for seam in seams for path in seam.paths}
    members = {place.rpartition(".")[2] for place in places}
    shapes: dict[str, set[Call]] = {}
    for seam in seams:
        calls = {
            Call(call.positional, tuple(sorted(call.keywords)))
            for use in seam.uses
            for call in use.calls
        }
        for path in seam.paths:
            shapes.setdefault(_plain(path), set()).update(calls)
    found: list[str] = []
    for file, touches in touched.items():
        said = f"{file.name}:"
        for name, line in touches.names.items():
            place = _plain(name)
            known = any(one == place or one.startswith(f"{place}.") for one in places)
            owner, _, member = place.rpartition(".")
            overrides = owner in places and member in touches.defined
            if not known and not overrides:
                found.append(f"{said}{line} {name}")
        for name, calls in touches.calls.items():
            known = shapes.get(_plain(name), set())
            # What is called with * or ** has no shape here; tests of the recipe hold it.
            found += [f"{said} {name}{call}" for call in calls if known and call not in known]
            found += [f"{said} {name}" for _ in calls if _plain(name) not in shapes]
        found += [
            f"{said}{line} .{name}"
            for name, line in touches.attributes.items()
            if name not in members and name not in own and name not in NOT_VLLM
        ]
    return found


def _defined(files: Iterable[Path]) -> set[str]:
    return {name for file in files for name in touches_of(file).defined}


def test_generator_of_speculators_0_3_touches_nothing_that_is_no_seam() -> None:
    files = _installed("gen1", "speculators")
    touched = _touching(files)
    assert {file.name for file in touched} == {
        "vllm_hidden_states_generator.py",
        "custom_worker.py",
        "config_generator.py",
    }
    assert missing(touched, [V03], _defined(files)) == []


def test_connectors_of_speculators_0_9_touch_nothing_that_is_no_seam() -> None:
    files = _installed("gen2", "hs_connectors")
    touched = _touching(files)
    assert len(touched) == 2
    assert missing(touched, [Consumer.HS_CONNECTORS], _defined(files)) == []


def test_speculators_0_9_itself_touches_no_vllm() -> None:
    assert _touching(_installed("gen2", "speculators")) == {}


def test_engine_side_of_the_harness_touches_nothing_that_is_no_seam() -> None:
    files = sorted(INSIDE.glob("*.py"))
    assert len(_touching(files)) > 4
    read = {file: touches_of(file) for file in files}
    own = _defined([*files, ROOT / "harness" / "errors.py"])
    assert missing(read, [Consumer.NATIVE, Consumer.PATCHED], own) == []


def test_patches_touch_nothing_that_is_no_seam() -> None:
    files = sorted(PATCHES.rglob("*.py"))
    own = _defined([*files, *(ROOT / "harness" / "seams").glob("*.py"),
                    ROOT / "harness" / "errors.py"])  # fmt: skip
    read = {file: touches_of(file) for file in files}
    assert missing(read, [Consumer.PATCHES, V03], own) == []


def test_recipe_and_capture_name_no_module_of_vllm_that_is_no_seam() -> None:
    files = [*RECIPE.glob("*.py"), *(ROOT / "harness" / "capture").glob("*.py")]
    consumers = [Consumer.NATIVE, Consumer.PATCHED]
    places = {_plain(path) for one in consumers for seam in used_by(one) for path in seam.paths}
    names = {name for file in files for name in touches_of(file).names}
    assert [one for one in names if not any(p.startswith(_plain(one)) for p in places)] == []


def test_names_that_may_not_meet_the_workers_own_are_those_of_the_extensions() -> None:
    ours = touches_of(INSIDE / "worker.py").defined
    theirs = touches_of(
        next(f for f in _installed("gen1", "speculators") if f.name == "custom_worker.py")
    ).defined
    assert set(EXTENSION) <= ours | theirs
    hooks = {
        name for name in ours | theirs if name.startswith(("hs_", "_hs_", "_get_cap", "_reset"))
    }
    assert hooks - {"_hs_capture", "_hs_witness"} <= set(EXTENSION)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("from vllm.v1.request import Request, Answer", "vllm.v1.request:Answer"),
        ("import vllm\nvllm.serve()", "vllm:serve"),
        ("from vllm.v1.request import RequestStatus as S\nS.LOST", "RequestStatus.LOST"),
        ("from vllm.v1.core.kv_cache_utils import init_none_hash as f\nf(1, 2)", "(_, _)"),
        ("from vllm.v1.request import Request\ndef f(r):\n    return r.colour", ".colour"),
        ("import vllm.distributed\ndef f(r):\n    return getattr(r, 'colour', None)", ".colour"),
        ("NAME = 'vllm.elsewhere.thing'", "vllm.elsewhere.thing"),
        ("_P = 'vllm.elsewhere'\nNAME = f'{_P}.thing'", "vllm.elsewhere"),
        ("from vllm.v1.core.sched.scheduler import Scheduler\n"
         "class Mine(Scheduler):\n    def f(self):\n        super().pause()", "Scheduler.pause"),
    ],
)  # fmt: skip
def test_touch_that_is_no_seam_is_found(tmp_path: Path, code: str, told: str) -> None:
    file = tmp_path / "consumer.py"
    file.write_text(code)
    found = missing({file: touches_of(file)}, Consumer, touches_of(file).defined)
    assert any(told in one for one in found), found


@pytest.mark.slow
def test_generator_of_speculators_0_4_touches_nothing_that_is_no_seam(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "speculators==0.4.0"]
    done = subprocess.run(
        [*words, "-d", str(tmp_path)], capture_output=True, text=True, check=False
    )
    wheels = list(tmp_path.glob("*.whl"))
    if not wheels:
        pytest.skip(f"speculators 0.4.0 cannot be fetched: {done.stderr.strip()[-200:]}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(tmp_path / "there")
    files = list((tmp_path / "there").rglob("*.py"))
    touched = _touching(files)
    assert touched
    assert missing(touched, [V04], _defined(files)) == []
