"""speculators 0.3.0's own generator on vLLM 0.16.0, with patches and without."""

from __future__ import annotations

import json
import random
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from harness import patches
from harness.oracles.reference import ReferenceHost
from tests.engine._support import assert_parity
from tests.engine.gen1._support import (
    CRASHES,
    PYTHON,
    Plan,
    drive,
    drive_by_command,
    needs_gen1,
    prompts,
)

pytestmark = [pytest.mark.engine, needs_gen1]

WORKER = "Worker failed with error '{}', please check the stack trace above for the root cause"
ERRORS: tuple[tuple[str, str, str | tuple[str, ...]], ...] = (
    (
        "scheduler-config",
        "ValidationError",
        "1 validation error for SchedulerConfig\nis_encoder_decoder\n  Field required",
    ),
    (
        "eagle3-check",
        "RuntimeError",
        WORKER.format(
            "Model KimiK25ForConditionalGeneration does not support hidden state extraction"
        ),
    ),
    (
        "model-walk",
        "RuntimeError",
        WORKER.format("'KimiK25ForConditionalGeneration' object has no attribute 'model'"),
    ),
    # Only without a GPU; the words are torch's, and tell a missing driver from missing devices.
    ("device-memory", "RuntimeError", ("Found no NVIDIA driver", "No CUDA GPUs are available")),
    (
        "kv-config-call",
        "TypeError",
        "get_kv_cache_config_from_groups() got an unexpected keyword argument 'kv_cache_specs'",
    ),
    (
        "scheduler-block-size",
        "TypeError",
        "Scheduler.__init__() missing 1 required positional argument: 'block_size'",
    ),
    (
        "model-forward",
        "RuntimeError",
        WORKER.format("'DeepseekV2Model' object has no attribute 'get_input_embeddings'"),
    ),
    ("prefix-reuse", "AssertionError", ""),
    (
        "single-reply",
        "RuntimeError",
        "Boolean value of Tensor with more than one value is ambiguous",
    ),
    (
        "two-phase",
        "RuntimeError",
        WORKER.format(
            "State error: sample_tokens() must be called after execute_model() returns None."
        ),
    ),
)


def needed(python: Path = PYTHON) -> list[str]:
    return [patch.id for patch in patches.needed_in(patches.of_python(python))]


def mixed() -> list[list[list[int]]]:
    """Batches that 0.3.0 returns wrong: cut prompts, shared prefixes, twins, the same again."""
    lengths = prompts(40, 50, 200, 9, 1, 64, 65)
    shared, twin = prompts(96, 64, seed=1)
    sharing = [shared + more for more in prompts(10, 20)] + [list(twin), list(twin)]
    return [lengths, sharing, prompts(*(3 + number % 9 for number in range(40))), sharing]


def test_the_command_makes_every_row_of_a_plain_model_right(
    tiny_plain: Path, plain_reference: ReferenceHost, tmp_path: Path
) -> None:
    plan = Plan("plain", str(tiny_plain), needed(), mixed(), budget=64)
    outcome, said = drive_by_command(tmp_path, plan)
    assert "vllm_hidden_states_generator: in force: tokenizer-code, half-precision" in said
    assert "custom_worker: in force: eagle3-check, model-walk, model-forward" in said
    assert outcome.error is None
    assert outcome.left == [[0]] * len(plan.batches)
    assert outcome.asynchronous == [False]
    for batch in range(len(plan.batches)):
        assert_parity(outcome.reports(plain_reference, batch))


@pytest.mark.slow
def test_all_patches_together_return_every_row_of_a_wrapped_model_on_two_ranks(
    tiny_wrapped: Path, tmp_path: Path
) -> None:
    plan = Plan(
        "wrapped",
        str(tiny_wrapped),
        needed(),
        mixed(),
        budget=64,
        text_only=True,
        tensor_parallel_size=2,
    )
    outcome = drive(tmp_path, [plan])["wrapped"]
    assert outcome.error is None
    assert outcome.left == [[0, 0]] * len(plan.batches)
    with ReferenceHost(tiny_wrapped, Path(sys.executable), tmp_path / "reference") as reference:
        for batch in range(len(plan.batches)):
            assert_parity(outcome.reports(reference, batch))


@pytest.mark.slow
def test_each_crash_shows_its_own_error_in_turn_and_goes_with_its_own_patch(
    tiny_wrapped: Path, tmp_path: Path
) -> None:
    # Prompts that fill a block of 16, twice: the last crash comes with the second step.
    batches = [prompts(20), prompts(33)]
    plans = [
        Plan(f"with-{count}", str(tiny_wrapped), CRASHES[:count], batches, text_only=True)
        for count in range(len(CRASHES) + 1)
    ]
    outcomes = list(drive(tmp_path, plans, timeout_s=900).values())
    seen = [outcome.error for outcome in outcomes]
    for (id, kind, text), error in zip(ERRORS, seen, strict=False):
        assert error is not None, f"{id} is not needed"
        assert error["type"] == kind, f"before {id}: {error}"
        if id in ("scheduler-config", "device-memory"):
            assert error["text"].startswith(text), f"before {id}: {error}"
        else:
            assert error["text"] == text, f"before {id}: {error}"
    assert len(seen) == len(ERRORS) + 1
    assert seen[-1] is None


@pytest.mark.slow
def test_each_silent_fault_is_there_without_its_patch_and_gone_with_it(
    tiny_plain: Path, plain_reference: ReferenceHost, tmp_path: Path
) -> None:
    chunked = [prompts(40, 50, 200, 9)]
    added = ("all-chunks", "rows-by-request", "layer-order", "last-step")
    plans = [
        Plan(f"with-{count}", str(tiny_plain), (*CRASHES, *added[:count]), chunked, budget=64)
        for count in range(len(added) + 1)
    ]
    outcomes = list(drive(tmp_path, plans).values())
    assert [outcome.error for outcome in outcomes] == [None] * len(plans)
    crashes, chunks, rows, order, last = outcomes
    ascending = sorted(plans[0].layer_ids)

    # The second prompt was cut at 24 of its 50 rows, and has 50 all the same.
    second = crashes.rows(0, 1)
    assert [len(states) for states in second] == [50] * 3
    truth = plain_reference.compute({"second": chunked[0][1]})["second"]
    assert abs(second[0][-1] - truth.hidden_states[-1, ascending[0] + 1]).max() > 0.1

    assert {report.status for report in chunks.reports(plain_reference, 0, ascending)} >= {"failed"}
    assert_parity(rows.reports(plain_reference, 0, ascending))
    assert {report.status for report in rows.reports(plain_reference, 0)} == {"failed"}
    assert_parity(order.reports(plain_reference, 0))
    # What the last step finished is never told.
    assert order.left[0][0] > 0
    assert_parity(last.reports(plain_reference, 0))
    assert last.left == [[0]]


@pytest.mark.slow
def test_all_patches_together_return_every_row_on_the_newest_release_too(
    tiny_plain: Path,
    plain_reference: ReferenceHost,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The vLLM of this interpreter, with the speculators of the other and nothing else of it.
    here = Path(sys.executable)
    site = tmp_path / "site"
    site.mkdir()
    for found in PYTHON.parents[1].glob("lib/python*/site-packages/speculators*"):
        (site / found.name).symlink_to(found)
    monkeypatch.setenv("PYTHONPATH", str(site))
    plan = Plan("newest", str(tiny_plain), needed(here), mixed(), budget=64)
    outcome = drive(tmp_path, [plan], python=here)["newest"]
    assert outcome.error is None
    assert outcome.left == [[0]] * len(plan.batches)
    for batch in range(len(plan.batches)):
        assert_parity(outcome.reports(plain_reference, batch))


@pytest.mark.slow
def test_200_random_prompts_and_50_calls_leave_no_wrong_row_and_nothing_behind(
    tiny_plain: Path, plain_reference: ReferenceHost, tmp_path: Path
) -> None:
    draw = random.Random(200)
    batches = [prompts(*(draw.randrange(1, 80) for _ in range(4)), seed=n) for n in range(50)]
    plan = Plan("many", str(tiny_plain), needed(), batches, budget=64)
    outcome = drive(tmp_path, [plan])["many"]
    assert outcome.error is None
    assert outcome.left == [[0]] * len(batches)
    reports = [one for n in range(50) for one in outcome.reports(plain_reference, n)]
    assert len(reports) == 200
    assert_parity(reports)


@pytest.mark.slow
def test_layers_get_the_scaling_that_their_configuration_sets_and_float16_is_refused(
    tiny_plain: Path, plain_reference: ReferenceHost, tmp_path: Path
) -> None:
    first = 16
    scaled = tmp_path / "scaled"
    shutil.copytree(tiny_plain, scaled)
    config = json.loads((scaled / "config.json").read_text())
    config["llama_4_scaling"] = {"original_max_position_embeddings": first, "beta": 0.5}
    (scaled / "config.json").write_text(json.dumps(config))
    batch = prompts(40)
    kept = [id for id in needed() if id != "half-precision"]
    plans = [
        Plan("scaled", str(scaled), needed(), [batch]),
        Plan("half", str(tiny_plain), needed(), [batch], dtype="float16"),
        Plan("half-let-through", str(tiny_plain), kept, [batch], dtype="float16"),
    ]
    outcomes = drive(tmp_path / "out", plans)
    truth = plain_reference.compute({"one": batch[0]})["one"].hidden_states
    assert outcomes["scaled"].error is None
    for layer, rows in zip(plans[0].layer_ids, outcomes["scaled"].rows(0, 0), strict=True):
        right = truth[:, layer + 1]
        error = np.linalg.norm(rows - right, axis=-1) / np.linalg.norm(right, axis=-1)
        # The scaling is 1 up to there; the reference knows nothing of it.
        assert error[:first].max() < 1e-5
        assert error[first:].min() > 1e-2
    refused = outcomes["half"].error
    assert refused is not None
    assert refused["text"].startswith("patches.float16")
    factor = config["routed_scaling_factor"]
    for layer, rows in zip(
        plans[0].layer_ids, outcomes["half-let-through"].rows(0, 0), strict=True
    ):
        right = truth[:, layer + 1]
        ratio = (rows * right).sum(-1) / (right * right).sum(-1)
        assert abs(np.median(ratio) * factor - 1) < 1e-2
