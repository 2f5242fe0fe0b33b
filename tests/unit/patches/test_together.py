"""A consumer that calls vLLM as 0.3.0 does, on every release: wrong without patches, right with."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fixtures.mock_vllm import expected_rows, install
from harness.patches import PATCHES, Patch, live, needed_in, of_release
from harness.patches._modules import EXTENSION, GENERATOR
from harness.seams import recorded, releases
from tests.unit.mock_engines import prompt
from tests.unit.patches.fakes import libraries

CONSUMER = Path(__file__).parent / "consumer"
FILES = {GENERATOR: "generator.py", EXTENSION: "worker.py"}
LAYERS = [3, 0, 2]
SILENT = ("all-chunks", "rows-by-request", "layer-order", "last-step")
CRASHES = {
    "scheduler-config": "is_encoder_decoder",
    "kv-planning": "cannot import name '_get_kv_cache_groups_uniform_spec'",
    "kv-layout": "KV cache layout has not been resolved yet",
    "eagle3-check": "does not support hidden state extraction",
    "model-walk": "has no attribute 'model'",
    "kv-config-call": "unexpected keyword argument 'kv_cache_specs'",
    "scheduler-block-size": "missing 1 required positional argument: 'block_size'",
    "model-forward": "has no attribute 'get_input_embeddings'",
    "request-arguments": "unexpected keyword argument 'eos_token_id'",
    "single-reply": "Boolean value of Tensor with more than one value is ambiguous",
    "two-phase": "sample_tokens() must be called after execute_model() returns None",
}
"""Patch -> what is said without it, with all the others in force."""


@contextmanager
def consumer(
    release: str,
    patches: Sequence[Patch],
    monkeypatch: pytest.MonkeyPatch,
    *,
    scramble: bool = False,
) -> Iterator[Any]:
    """The consumer's generator class on the mock of a release."""
    kimi = not recorded(release).entry("kimi").missing
    with (
        install(release, kimi=kimi, scramble=scramble),
        monkeypatch.context() as patched,
    ):
        torch = _libraries(patched)
        _apply([one for one in patches if one.module not in FILES], patched)
        for name, file in FILES.items():
            spec = importlib.util.spec_from_file_location(name, CONSUMER / file)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            patched.setitem(sys.modules, name, module)
            spec.loader.exec_module(module)
        _apply([one for one in patches if one.module in FILES], patched)
        assert torch.cuda.mem_get_info() == (1 << 30, 1 << 30)
        yield sys.modules[GENERATOR].VllmHiddenStatesGenerator  # type: ignore[attr-defined]


def _apply(patches: Sequence[Patch], patched: pytest.MonkeyPatch) -> None:
    """What is not in the generator's own modules is there before they are imported."""
    for patch in patches:
        for name, value in patch.environment.items():
            patched.setenv(name, value)
        patch.apply(live)


def _libraries(patched: pytest.MonkeyPatch) -> Any:
    libraries(patched)
    torch, transformers = ModuleType("torch"), ModuleType("transformers")
    contents = {
        "cat": lambda parts, dim: np.concatenate(parts).view(type(parts[0])),
        "cuda": SimpleNamespace(mem_get_info=lambda: (1 << 30, 1 << 30), empty_cache=lambda: None),
    }
    torch.__dict__.update(contents)
    tokenizer = SimpleNamespace(eos_token_id=2)
    transformers.AutoTokenizer = SimpleNamespace(  # type: ignore[attr-defined]
        from_pretrained=lambda *args, **keywords: tokenizer
    )
    patched.setitem(sys.modules, "torch", torch)
    patched.setitem(sys.modules, "transformers", transformers)
    return torch


def batches() -> list[list[list[int]]]:
    """Cut prompts, shared prefixes, twins, and the same again."""
    shared = prompt(48, 7)
    mixed = [prompt(40, 1), prompt(50, 2), prompt(200, 3), prompt(9, 4), prompt(64, 5)]
    sharing = [shared + prompt(9, 8), shared + prompt(20, 9), shared, shared]
    return [mixed, sharing, sharing]


def budget(release: str) -> int:
    """Tokens of a step. 0.11.0 cuts no prompts where nobody asks: the longest must fit."""
    field = recorded(release).entry("config.scheduler").field("enable_chunked_prefill")
    return 64 if field is not None and field.default == "True" else 256


def send_all(generator: Any) -> None:
    made = generator("tiny", LAYERS)
    for batch in batches():
        made.generate(batch)


def wrong(generator: Any, batch: list[list[int]], layers: Sequence[int] = LAYERS) -> int:
    """How many prompts of a batch come back with a row that is not theirs."""
    found = 0
    for ids, result in zip(batch, generator.generate(batch), strict=True):
        states = result["hidden_states"]
        found += not all(
            np.array_equal(rows, expected_rows(ids, layer + 1))
            for layer, rows in zip(layers, states, strict=True)
        )
    return found


@pytest.mark.parametrize("release", releases())
def test_needed_patches_make_every_row_right(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = needed_in(of_release(release))
    with consumer(release, chosen, monkeypatch) as generator:
        made = generator("tiny", LAYERS, ranks=2, budget=budget(release))
        for batch in batches():
            assert wrong(made, batch) == 0
            left = made.executor.collective_rpc(lambda worker: len(worker.model_runner.requests))
            assert left == [0, 0]


def pairs() -> list[tuple[str, str]]:
    """Some releases, each with the patches that it needs against a crash."""
    return [
        (release, patch.id)
        for release in ("0.11.0", "0.12.0", "0.16.0", "0.26.0", "0.32.0", "0.33.0")
        for patch in needed_in(of_release(release))
        if patch.id in CRASHES
    ]


@pytest.mark.parametrize(("release", "id"), pairs())
def test_without_a_needed_patch_its_own_error_comes(
    release: str, id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = needed_in(of_release(release))
    others = [patch for patch in chosen if patch.id != id]
    said = re.escape(CRASHES[id])
    with (
        pytest.raises((ImportError, RuntimeError, TypeError, ValueError), match=said),
        consumer(release, others, monkeypatch) as generator,
    ):
        send_all(generator)


def test_each_silent_fault_is_there_until_its_patch_is(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {patch.id: patch for patch in needed_in(of_release("0.16.0"))}
    loud = [patch for id, patch in chosen.items() if id not in SILENT]
    seen = []
    for count in range(len(SILENT) + 1):
        patches = [*loud, *(chosen[id] for id in SILENT[:count])]
        with consumer("0.16.0", patches, monkeypatch, scramble=True) as generator:
            made = generator("tiny", LAYERS)
            ascending = wrong(made, batches()[0], sorted(LAYERS))
            asked = wrong(made, batches()[0])
            (left,) = made.executor.collective_rpc(lambda worker: len(worker.model_runner.requests))
            seen.append((ascending > 0, asked > 0, left > 0))
    assert seen == [
        (True, True, True),
        (True, True, True),
        (False, True, True),
        (True, False, True),
        (True, False, False),
    ]
    assert {patch.id for patch in PATCHES} >= set(SILENT)
