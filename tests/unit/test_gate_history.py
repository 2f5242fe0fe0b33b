"""The gate over every recorded release: each move is dated to its release by the tool itself."""

from __future__ import annotations

import time
from functools import cache
from itertools import pairwise

import pytest

from harness.gate.scale import Verdict
from harness.gate.static import StaticAnswer, judge
from harness.gate.verdict import SeamStatus
from harness.seams import Consumer, recorded, releases
from harness.seams.diff import diff
from harness.standing._needs import NEEDS

RELEASES = releases()
PAIRS = {later: earlier for earlier, later in pairwise(RELEASES)}

# What moved, by release: seams (with a word of what is said there), then probes.
MOVES = {
    "0.11.1": (
        "scheduler:block_size executor.collective_rpc:- deepseek.model.embed:embed_input_ids"
        " llama.model.embed:embed_input_ids kv.hash-function:hashing"
        " worker-wrapper.init_worker:v1 config.scheduler:-",
        "execute-model.two-phase execute-model.reentry-guard collective-rpc.single-reply",
    ),
    "0.12.0": (
        "kv.config-from-groups:kv_cache_specs config.scheduler:is_encoder_decoder"
        " config.cache.enable_prefix_caching:True",
        "prefix-caching.default scheduler-config.required runner-v2.default-for",
    ),
    "0.14.0": ("config.scheduler.async_scheduling:None",
               "async-scheduling.default current-config.unset"),
    "0.15.0": ("", "kimi.language-model registry.kimi"),
    "0.16.0": ("kimi.get_language_model:SupportsMultiModal", "kimi.language-model"),
    "0.17.0": ("request:eos_token_id scheduler.finish_requests:list", "native.targets"),
    "0.18.0": ("deepseek.model.forward:tuple-2",
               "deepseek.supports-eagle3 kimi.supports-eagle3 mla-block-size.overwritten"
               " deepseek.capture native.targets"),
    "0.20.0": ("", "gpu-memory-utilization.default"),
    "0.22.0": ("", "native.connector.write native.targets runner-v2.default-for"),
    "0.24.0": ("", "native.connector.write native.connector.rank runner-v2.deepseek"
                   " native.connector.request-params native.connector.extra-keys"),
    "0.25.0": ("", "deepseek.layer.token-sharded deepseek.capture"),
    "0.26.0": ("scheduler.finish_requests:value", "block-hashes.asserted"),
    "0.27.0": ("", "initialize-from-config.warms-up"),
    "0.29.0": ("", "runner-v2.default-for runner-v2.kimi native.connector.layout"),
    "0.31.0": ("", "native.connector.finished-count"),
    "0.33.0": ("kv.groups-uniform:kv_cache_planning kv.unify-hybrid:kv_cache_planning"
               " kv.config-from-groups:kv_cache_planning", ""),
}  # fmt: skip
ADDED = """
    0.11.1 request signature structured_output_request -
    0.11.1 config.scheduler field_max_model_len = (initvar
    0.11.1 intermediate-tensors signature - kv_connector_output=None
    0.11.1 scheduler.get_grammar_bitmask signature scheduled_spec_decode_tokens (scheduler_output)
    0.11.1 executor.sample_tokens kind missing method
    0.11.1 worker.sample_tokens kind missing method
    0.11.1 runner.sample_tokens kind missing method
    0.12.0 deepseek.layer.forward signature - llama_4_scaling=None
    0.12.0 runner-v2 kind missing class
    0.15.0 kimi kind missing class
    0.15.0 llama.model.forward signature - **extra_layer_kwargs
    0.15.0 request signature - resumable
    0.16.0 request signature - reasoning_ended
    0.17.0 connector kind missing class
    0.17.0 capture.proposer kind missing module
    0.18.0 eagle3.default-layers paths get_eagle3_aux get_eagle3_default_aux
    0.18.0 deepseek.causal bases - SupportsEagle3
    0.20.0 scheduler signature - hash_block_size=None
    0.20.0 config.cache field_hash_block_size - =
    0.20.0 kv.resolve-block-sizes kind missing function
    0.20.0 kv.config-from-groups signature - suppress_log
    0.20.1 kv.config-from-groups signature suppress_log -
    0.20.1 request signature - reasoning_parser_kwargs
    0.21.0 request signature - prompt_is_token_ids
    0.21.0 request signature - abort_immediately
    0.21.0 connector signature kv_cache_config=None kv_cache_config
    0.22.0 kv.hidden-state-spec kind missing class
    0.23.0 intermediate-tensors signature kv_connector_output=None -
    0.23.0 executor.max_concurrent_batches kind property missing
    0.23.0 runner-v2.cpu kind missing module
    0.24.0 kv.block-hasher signature (block_size (hash_block_size
    0.24.0 scheduler.schedule signature - throttle_prefills=False
    0.26.0 config.cache field_hash_block_size = -
    0.28.0 executor.collective_rpc signature - ec_output_aggregator
    0.28.0 kimi bases - SupportsEncoderCudaGraph
    0.28.0 request signature - session_id
    0.29.0 capture.proposer-v2 kind missing module
    0.31.0 request signature - kv_hints
    0.32.0 config.cache field_hash_block_size - noinit
    0.33.0 executor.set_kv_cache_layout signature - cp_kv_cache_interleave_size
"""
"""Release, seam, member, a word of what was and of what is; ``-``: nothing of the other word."""
QUIET = ["0.11.2", "0.14.1", "0.15.1", "0.17.1", "0.18.1", "0.20.2", "0.22.1", "0.25.1", "0.27.1"]
"""Releases in which nothing moved that anybody relies on."""


@cache
def answer(release: str, known: str = "") -> StaticAnswer:
    return judge(recorded(known or PAIRS[release]), recorded(release))


def _moved(release: str) -> dict[str, str]:
    return {
        one.id: f"{one.found} {one.hint}"
        for one in answer(release).seams
        if one.status is not SeamStatus.HOLDS
    }


@pytest.mark.parametrize("release", MOVES)
def test_move_is_dated_to_its_release(release: str) -> None:
    seams, probes = MOVES[release]
    moved = _moved(release)
    for said in seams.split():
        seam, _, word = said.partition(":")
        if word == "-":
            continue
        assert word in moved[seam], moved[seam]
    changed = {one.name for one in answer(release).probes if one.changed}
    assert set(probes.split()) <= changed


@pytest.mark.parametrize("line", ADDED.strip().splitlines())
def test_addition_that_breaks_nobody_is_dated_by_the_difference(line: str) -> None:
    release, seam, member, before, after = line.split()
    member = member.replace("_", " ", 1) if member.startswith("field_") else member

    def said(release: str) -> bool:
        pair = recorded(PAIRS[release]), recorded(release)
        return any(
            one.id == seam
            and one.member == member
            and _has(one.before, before, after)
            and _has(one.after, after, before)
            for one in diff(*pair)
        )

    assert said(release)
    assert line.endswith(("- =", "= -", "noinit", "(initvar")) or [r for r in PAIRS if said(r)] == [
        release
    ]


def _has(text: str, word: str, other: str) -> bool:
    return other not in text if word == "-" else word in text


@pytest.mark.parametrize("release", QUIET)
def test_quiet_release_is_quiet(release: str) -> None:
    assert _moved(release) == {}
    assert [one.name for one in answer(release).probes if one.changed] == []


@pytest.mark.parametrize("release", PAIRS)
def test_no_release_was_lost_to_the_patched_generation(release: str) -> None:
    verdicts = {one.name: one.verdict for one in answer(release).generations}
    assert verdicts["patched"] is Verdict.OK_WITH_PATCHES
    native = Verdict.OK if RELEASES.index(release) >= RELEASES.index("0.25.0") else None
    assert verdicts["native"] is (native or Verdict.NOT_COMPARABLE)


@pytest.mark.parametrize(
    ("consumer", "first", "last"),
    [
        (Consumer.SPECULATORS_0_3, "0.11.0", "0.11.0"),
        (Consumer.SPECULATORS_0_4, "0.12.0", "0.16.0"),
    ],
)
def test_published_generators_bind_where_their_pins_say(
    consumer: Consumer, first: str, last: str
) -> None:
    def binds(release: str) -> bool:
        known = PAIRS.get(release, release)
        (found,) = [one for one in answer(release, known).consumers if one.name == consumer]
        return found.binds

    good = [release for release in RELEASES if binds(release)]
    assert good == list(RELEASES[RELEASES.index(first) : RELEASES.index(last) + 1])


def test_generator_of_0_4_is_lost_in_0_17_and_that_decides_nothing() -> None:
    found = {one.name: one for one in answer("0.17.0").consumers}["speculators-0.4.0"]
    assert found.verdict is Verdict.REGRESSED
    assert found.findings == ("request does not know eos_token_id",)
    patched = answer("0.17.0").generations[0]
    assert patched.verdict is Verdict.OK_WITH_PATCHES
    assert any("speculators-0.4.0" in reason for reason in patched.reasons)


def test_every_patch_fits_every_release_that_needs_it() -> None:
    for release in PAIRS:
        patches = answer(release).generations[0].patches
        assert patches.broken == ()
        assert patches.fits == patches.needed
    assert "two-phase" in answer("0.11.1").generations[0].patches.fits
    assert "warm-up" in answer("0.27.0").generations[0].patches.fits
    assert "warm-up" in answer("0.26.0").generations[0].patches.obsolete
    assert "kv-planning" in answer("0.33.0").generations[0].patches.fits
    assert "kv-planning" in answer("0.32.0").generations[0].patches.obsolete


def test_every_answer_that_was_ever_recorded_has_been_judged() -> None:
    """What a probe said in some release is known to work or to fail, for whoever needs it."""
    for need in NEEDS:
        seen = {recorded(release).probe(need.probe) for release in RELEASES}
        assert seen <= need.works | need.fails, need
        assert not need.works & need.fails


def test_all_releases_are_judged_in_seconds() -> None:
    started = time.process_time()
    for later, earlier in PAIRS.items():
        judge(recorded(earlier), recorded(later))
    assert time.process_time() - started < 15
