"""Contracts of the recorded surfaces: what moved in vLLM, dated to its release.

The dates are facts read from the releases themselves.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from harness.data import data_path
from harness.errors import ExitCode, NotComparable, UsageError
from harness.seams import (
    BY_ID,
    SEAMS,
    UNKNOWN,
    Consumer,
    Surface,
    bind,
    read_surface,
    recorded,
    releases,
    spelled,
    surface_of,
    used_by,
)
from harness.seams.probes import PROBES

_READ = """
0.11.0 0.11.1 0.11.2 0.12.0 0.13.0 0.14.0 0.14.1 0.15.0 0.15.1 0.16.0 0.17.0 0.17.1 0.18.0
0.18.1 0.19.0 0.19.1 0.20.0 0.20.1 0.20.2 0.21.0 0.22.0 0.22.1 0.23.0 0.24.0 0.25.0 0.25.1
0.26.0 0.27.0 0.27.1 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0 0.33.0
"""
RELEASES = _READ.split()
INSIDE = Path(__file__).parents[2] / "harness" / "inside"


def _runs(values: dict[str, str]) -> str:
    """Write values over releases as ``value, value from RELEASE, ...``."""
    first, *_ = values.values()
    changes = [
        f"{values[later]} from {later}"
        for earlier, later in pairwise(values)
        if values[later] != values[earlier]
    ]
    return ", ".join([first, *changes])


def _signature_has(seam: str, name: str) -> str:
    """Say over all releases whether a call takes an argument, and whether it must be given."""
    said: dict[str, str] = {}
    for release in RELEASES:
        signature = recorded(release).entry(seam).parsed()
        assert signature is not None
        parameter = signature.parameters.get(name)
        required = parameter is not None and parameter.default is parameter.empty
        said[release] = "no" if parameter is None else "required" if required else "optional"
    return _runs(said)


# The files


def test_every_release_is_recorded() -> None:
    assert list(releases()) == RELEASES


@pytest.mark.parametrize("release", RELEASES)
def test_recorded_surface_is_whole_compact_and_written_as_it_would_be_now(release: str) -> None:
    path = data_path(f"surfaces/{release}.json")
    text = path.read_text()
    surface = recorded(release)
    assert surface.release == release
    assert set(surface.entries) == set(BY_ID), "record it again: docs/surfaces.md"
    assert set(surface.probes) == set(PROBES), "record it again: docs/surfaces.md"
    assert surface.dumps() == text
    assert len(text) < 80_000
    for entry in surface.entries.values():
        entry.parsed()


def test_no_probe_is_unknown_in_a_recorded_release() -> None:
    values = [(r, name, value) for r in RELEASES for name, value in recorded(r).probes.items()]
    assert [one for one in values if one[2] == UNKNOWN] == []


def test_changed_surface_file_is_refused() -> None:
    text = recorded("0.16.0").dumps()
    with pytest.raises(UsageError) as error:
        Surface.loads(text.replace('"block_size"', '"blok_size"', 1))
    assert error.value.failure.id == "seams.broken-surface"
    for broken in ("", "{}", "[]", text[:-40], "[" * 100_000):
        with pytest.raises(UsageError):
            Surface.loads(broken)


def test_surface_file_that_is_no_text_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "surfaces").mkdir()
    (tmp_path / "surfaces" / "0.99.1.json").write_bytes(b"\xff\xfe")
    module = sys.modules[recorded.__module__]
    monkeypatch.setattr(module, "data_path", lambda name: tmp_path / name)
    with pytest.raises(UsageError) as error:
        recorded("0.99.1")
    assert error.value.failure.id == "seams.broken-surface"
    assert error.value.failure.where.endswith("0.99.1.json")


def test_surface_of_another_schema_is_not_comparable() -> None:
    text = recorded("0.16.0").dumps().replace('"schema": 1', '"schema": 99')
    with pytest.raises(NotComparable) as error:
        Surface.loads(text)
    assert error.value.failure.id == "seams.other-schema"


def test_release_that_was_never_read_is_not_comparable() -> None:
    with pytest.raises(NotComparable) as error:
        surface_of("0.10.2")
    assert error.value.failure.id == "seams.no-record"
    assert error.value.exit_code == ExitCode.UNKNOWN


# The inventory


def test_every_seam_has_its_own_id_a_place_and_a_user() -> None:
    assert len(BY_ID) == len(SEAMS)
    for seam in SEAMS:
        assert seam.paths, seam.id
        assert seam.uses, seam.id
        assert len({use.by for use in seam.uses}) == len(seam.uses), seam.id
        for use in seam.uses:
            assert set(use.paths) <= set(seam.paths), seam.id
    assert all(used_by(consumer) for consumer in Consumer)


def test_seam_that_no_release_has_is_a_seam_that_is_asked_for() -> None:
    never = {s.id for s in SEAMS if all(recorded(r).entry(s.id).missing for r in RELEASES)}
    # The V2 runner never kept its batch as an attribute.
    assert never == {"runner-v2.input_batch"}


def test_every_vllm_import_of_the_engine_side_is_a_seam() -> None:
    seams = (*used_by(Consumer.NATIVE), *used_by(Consumer.PATCHED))
    places = {path.replace(":", ".") for seam in seams for path in seam.paths}
    known = places | {path.rpartition(".")[0] for path in places}
    for file in sorted(INSIDE.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
                for alias in node.names:
                    name = f"{node.module}.{alias.name}"
                    assert any(p == name or p.startswith(f"{name}.") for p in known), (file, name)


def test_every_setting_of_the_recipe_is_a_seam() -> None:
    arguments = {name for use in BY_ID["engine-args"].uses for name in use.calls[0].keywords}
    arguments |= {s.id.removeprefix("engine-args.") for s in SEAMS if s.id.startswith("engine-a")}
    variables = {s.id.removeprefix("env.") for s in SEAMS if s.id.startswith("env.")}
    fields = {path.rpartition(".")[2] for seam in SEAMS for path in seam.paths}
    told: set[str] = set()
    for file in sorted((INSIDE.parent / "recipe").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) != "Setting":
                continue
            texts = [n.value for n in node.args if isinstance(n, ast.Constant)]
            told.add(str(texts[0]))
            if "environment" in texts and str(texts[0]).startswith("VLLM_"):
                assert texts[0] in variables, file
            elif "environment" not in texts and "preload" not in texts:
                assert texts[0] in arguments, file
            for kept in node.keywords:
                if kept.arg == "expect" and isinstance(kept.value, ast.Dict):
                    for key in kept.value.keys:
                        dotted = key.value if isinstance(key, ast.Constant) else ""
                        assert not dotted or set(str(dotted).split(".")[:2]) <= fields, file
    assert len(told) > 30


# What moved, and when


@pytest.mark.parametrize(
    ("seam", "argument", "said"),
    [
        ("scheduler", "block_size", "no, required from 0.11.1"),
        ("scheduler", "hash_block_size", "no, optional from 0.20.0"),
        ("kv.config-from-groups", "kv_cache_specs", "required, no from 0.12.0"),
        ("config.scheduler", "is_encoder_decoder",
         "no, optional from 0.11.1, required from 0.12.0"),
        ("config.scheduler", "max_model_len", "optional, required from 0.12.0"),
        ("request", "eos_token_id", "required, no from 0.17.0"),
        ("request", "block_hasher", "optional"),
        ("deepseek.layer.forward", "llama_4_scaling", "no, optional from 0.12.0"),
        ("kv.block-hasher", "hash_block_size", "no, required from 0.24.0"),
        ("scheduler.schedule", "throttle_prefills", "no, optional from 0.24.0"),
        ("intermediate-tensors", "kv_connector_output",
         "no, optional from 0.11.1, no from 0.23.0"),
    ],
)  # fmt: skip
def test_argument_is_dated(seam: str, argument: str, said: str) -> None:
    assert _signature_has(seam, argument) == said


@pytest.mark.parametrize(
    ("seam", "said"),
    [
        ("deepseek.model.embed", "old, new from 0.11.1"),
        ("llama.model.embed", "old, new from 0.11.1"),
        ("kv.hash-function", "old, new from 0.11.1"),
        ("worker-wrapper.init_worker", "old, new from 0.11.1"),
        ("executor.sample_tokens", "missing, new from 0.11.1"),
        ("runner.sample_tokens", "missing, new from 0.11.1"),
        ("runner.execute_model_state", "missing, new from 0.11.1"),
        ("runner-v2", "missing, new from 0.12.0"),
        ("kimi", "missing, new from 0.15.0"),
        ("capture.proposer", "missing, new from 0.17.0"),
        ("deepseek.model.aux_hidden_state_layers", "missing, new from 0.18.0"),
        ("connector._submit_async_write", "missing, new from 0.24.0"),
        ("kv.groups-uniform", "old, new from 0.33.0"),
        ("kv.unify-hybrid", "old, new from 0.33.0"),
        ("kv.config-from-groups", "old, new from 0.33.0"),
    ],
)
def test_place_of_a_seam_is_dated(seam: str, said: str) -> None:
    newest = BY_ID[seam].paths[0]
    places: dict[str, str] = {}
    for release in RELEASES:
        paths = recorded(release).entry(seam).paths
        places[release] = "missing" if not paths else "new" if paths[0] == newest else "old"
    assert _runs(places) == said


@pytest.mark.parametrize(
    ("probe", "said"),
    [
        ("execute-model.two-phase", "no, yes from 0.11.1"),
        ("execute-model.reentry-guard", "none, raises from 0.11.1"),
        ("collective-rpc.single-reply", "list, bare from 0.11.1"),
        ("async-scheduling.default", "off, on from 0.14.0"),
        ("prefix-caching.default", "None, True from 0.12.0"),
        ("gpu-memory-utilization.default", "0.9, 0.92 from 0.20.0"),
        ("scheduler-config.required", "-, is_encoder_decoder, max_model_len from 0.12.0"),
        ("initialize-from-config.warms-up", "yes, no from 0.27.0"),
        ("current-config.unset", "warns, raises from 0.14.0"),
        ("runner-v2.default-for",
         "absent, opt-in from 0.12.0, listed from 0.22.0, all from 0.29.0"),
        ("runner-v2.deepseek", "no, yes from 0.24.0"),
        ("runner-v2.kimi", "no, yes from 0.29.0"),
        ("worker-extension.mixed-in", "bases"),
        ("block-hashes.asserted", "yes, no from 0.26.0"),
        ("mla-block-size.overwritten", "yes, no from 0.18.0"),
        ("kimi.language-model",
         "absent, DeepseekV2Model from 0.15.0, DeepseekV2ForCausalLM from 0.16.0"),
        ("kimi.supports-eagle3", "absent, no from 0.15.0, yes from 0.18.0"),
        ("deepseek.supports-eagle3", "no, yes from 0.18.0"),
        ("deepseek.layer.token-sharded", "no, yes from 0.25.0"),
        ("deepseek.capture", "none, inner from 0.18.0, inner, final from 0.25.0"),
        ("deepseek.calls", "as modules"),
        ("registry.deepseek-v2", "deepseek_v2:DeepseekV2ForCausalLM"),
        ("registry.deepseek-v3", "deepseek_v2:DeepseekV3ForCausalLM"),
        ("registry.kimi", "absent, kimi_k25:KimiK25ForConditionalGeneration from 0.15.0"),
        ("native.rows.handed-on", "absent, as returned from 0.17.0"),
        ("native.targets",
         "absent, listed from 0.17.0, listed with kimi from 0.18.0, any from 0.22.0"),
        ("native.connector.write",
         "absent, step from 0.17.0, step, locked from 0.22.0, finish, locked from 0.24.0"),
        ("native.connector.rank", "absent, all from 0.17.0, 0 from 0.24.0"),
        ("native.connector.layout", "absent, NHD from 0.17.0, LBNHC from 0.29.0"),
        ("native.connector.finished-count", "absent, inherited from 0.17.0, own from 0.31.0"),
        ("native.connector.request-params",
         "absent, - from 0.17.0, hidden_states_path, include_output_tokens from 0.24.0"),
        ("native.connector.response-key", "absent, hidden_states_path from 0.17.0"),
        ("native.connector.tensors", "absent, hidden_states, token_ids from 0.17.0"),
        ("deepseek.capture.point", "none, before from 0.18.0"),
        ("runner-v2.opt-out", "absent, yes from 0.12.0"),
        ("runner-v2.sorts-rows", "absent, yes from 0.12.0"),
        ("worker-extension.collisions", "-"),
        ("chunked-prefill.default", "None, True from 0.11.1"),
    ],
)  # fmt: skip
def test_behaviour_is_dated(probe: str, said: str) -> None:
    assert _runs({release: recorded(release).probe(probe) for release in RELEASES}) == said


def test_override_and_abstract_method_have_different_owners() -> None:
    surface = recorded("0.16.0")
    assert surface.entry("executor.sample_tokens").owner == "MultiprocExecutor"
    assert surface.entry("executor.initialize_from_config").owner == "Executor"


# Who gets through where


@pytest.mark.parametrize(
    ("consumer", "first", "last"),
    [
        (Consumer.SPECULATORS_0_3, "0.11.0", "0.11.0"),
        (Consumer.SPECULATORS_0_4, "0.12.0", "0.16.0"),
        (Consumer.NATIVE, "0.24.0", "0.33.0"),
        (Consumer.PATCHED, "0.11.0", "0.33.0"),
        (Consumer.PATCHES, "0.11.0", "0.33.0"),
        (Consumer.HS_CONNECTORS, "0.22.0", "0.33.0"),
    ],
)
def test_calls_of_a_consumer_bind_on_these_releases_only(
    consumer: Consumer, first: str, last: str
) -> None:
    good = [release for release in RELEASES if not bind(recorded(release), [consumer])]
    assert good == RELEASES[RELEASES.index(first) : RELEASES.index(last) + 1]


def test_first_generation_meets_its_four_crashes_of_signature_on_0_16() -> None:
    found = {
        (one.seam, one.kind, one.subject.rpartition(".")[2])
        for one in bind(recorded("0.16.0"), [Consumer.SPECULATORS_0_3])
    }
    assert found == {
        ("config.scheduler", "needs-argument", "is_encoder_decoder"),
        ("kv.config-from-groups", "unknown-keyword", "kv_cache_specs"),
        ("scheduler", "needs-argument", "block_size"),
        ("deepseek.model.embed", "moved", "get_input_embeddings"),
        ("llama.model.embed", "moved", "get_input_embeddings"),
    }


# The environment at hand


def test_installed_vllm_gives_the_recorded_surface() -> None:
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("no vLLM is installed here; next: make gen2")
    surface = read_surface(Path(next(iter(spec.submodule_search_locations))))
    if surface.release not in releases():
        pytest.skip(f"{surface.release} is not recorded; next: harness seams record")
    assert surface.digest == recorded(surface.release).digest


@pytest.mark.parametrize("name", ["0.16", "0.16.0.0", "v0.16.0", "vllm==0.16", "0.16.0+cpu"])
def test_release_is_one_in_any_spelling(name: str) -> None:
    assert spelled(name) == "0.16.0"
    assert recorded(name).release == surface_of(name).release == "0.16.0"


@pytest.mark.parametrize(
    "name", ["0.16.0rc1", "0.16.0.post1", "0.1600", "16", "", "0.16.1", "0.16.*"]
)
def test_another_release_is_not_taken_for_a_recorded_one(name: str) -> None:
    assert spelled(name) is None
