"""The reference itself, checked with numpy alone: an oracle that errs would hide every fault."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from harness import models
from harness.errors import CheckFailed, UsageError
from harness.oracles.reference import Reference, ReferenceHost, read_reference

pytestmark = pytest.mark.engine

PYTHON = Path(sys.executable)
PROMPTS = Path(__file__).parents[2] / "fixtures" / "prompts" / "mixed.jsonl"
LAYERS, HIDDEN, EXPERTS, TOP_K = 6, 128, 8, 2
EPS = 1e-6
SCALE = 2.827


def _prompts() -> dict[str, list[int]]:
    rows = [json.loads(line) for line in PROMPTS.read_text().splitlines()]
    return {row["id"]: row["input_ids"] for row in rows}


@pytest.fixture(scope="module")
def made(plain_reference: ReferenceHost) -> dict[str, Reference]:
    return plain_reference.compute(_prompts())


@pytest.fixture(scope="module")
def weights(tiny_plain: Path) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for shard in sorted(tiny_plain.glob("*.safetensors")):
        found |= load_file(shard)
    return {name: value.astype(np.float64) for name, value in found.items()}


def _rms(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * weight


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def _mlp(x: np.ndarray, weights: dict[str, np.ndarray], name: str) -> np.ndarray:
    gate, up, down = (weights[f"{name}.{part}_proj.weight"] for part in ("gate", "up", "down"))
    gated = x @ gate.T
    return (gated * _sigmoid(gated) * (x @ up.T)) @ down.T


def _first_token_layer(
    x: np.ndarray, weights: dict[str, np.ndarray], layer: int
) -> tuple[np.ndarray, float | None]:
    """One decoder layer for a first token, which attends to itself alone: (next depth, gap)."""
    name = f"model.layers.{layer}"
    attention = f"{name}.self_attn"
    normed = _rms(x, weights[f"{name}.input_layernorm.weight"])
    latent = (weights[f"{attention}.kv_a_proj_with_mqa.weight"] @ normed)[:512]
    latent = _rms(latent, weights[f"{attention}.kv_a_layernorm.weight"])
    expanded = (weights[f"{attention}.kv_b_proj.weight"] @ latent).reshape(8, 256)
    x = x + weights[f"{attention}.o_proj.weight"] @ expanded[:, 128:].reshape(-1)
    normed = _rms(x, weights[f"{name}.post_attention_layernorm.weight"])
    if f"{name}.mlp.gate.weight" not in weights:
        return x + _mlp(normed, weights, f"{name}.mlp"), None
    scores = _sigmoid(weights[f"{name}.mlp.gate.weight"] @ normed)
    choice = scores + weights[f"{name}.mlp.gate.e_score_correction_bias"]
    order = np.argsort(-choice)
    gap = float(choice[order[TOP_K - 1]] - choice[order[TOP_K]])
    chosen = order[:TOP_K]
    share = scores[chosen] / scores[chosen].sum() * SCALE
    added = _mlp(normed, weights, f"{name}.mlp.shared_experts")
    for expert, part in zip(chosen, share, strict=True):
        added = added + part * _mlp(normed, weights, f"{name}.mlp.experts.{expert}")
    return x + added, gap


def test_shapes_and_types_are_as_promised(made):
    for key, ids in _prompts().items():
        one = made[key]
        assert one.token_ids.tolist() == ids
        assert one.hidden_states.shape == (len(ids), LAYERS + 1, HIDDEN)
        assert one.hidden_states.dtype == np.float32
        assert one.routing_gap.shape == (len(ids), LAYERS - 1)
        assert one.logprobs.shape == (len(ids) - 1,)
        assert one.moe_layers == (1, 2, 3, 4, 5)
        assert one.num_layers == LAYERS
        assert all(np.isfinite(a).all() for a in (one.hidden_states, one.logprobs))
        assert (one.logprobs < 0).all()


def test_depth_zero_is_the_embedding_of_each_token(made, weights):
    one = made["length-33"]
    np.testing.assert_array_equal(
        one.hidden_states[:, 0], weights["model.embed_tokens.weight"][one.token_ids]
    )


def test_every_depth_of_a_first_token_equals_a_numpy_forward(made, weights):
    for key in ("length-1", "length-17", "shared-9"):
        one = made[key]
        x = weights["model.embed_tokens.weight"][one.token_ids[0]]
        for layer in range(LAYERS):
            x, _ = _first_token_layer(x, weights, layer)
            error = np.abs(one.hidden_states[0, layer + 1] - x).max() / np.abs(x).max()
            assert error < 1e-5, f"{key}: depth {layer + 1}"


def test_the_routing_gap_of_a_first_token_equals_a_numpy_forward(made, weights):
    for one in made.values():
        for column, layer in enumerate(one.moe_layers):
            x = one.hidden_states[0, layer].astype(np.float64)
            _, gap = _first_token_layer(x, weights, layer)
            assert one.routing_gap[0, column] == pytest.approx(gap, abs=1e-5)


def test_the_last_depth_is_before_the_norm_and_norm_and_head_rebuild_the_logprobs(made, weights):
    for one in made.values():
        last = one.hidden_states[:, -1].astype(np.float64)
        normed = _rms(last, weights["model.norm.weight"])
        rebuilt = _next_token_logprobs(normed, weights, one.token_ids)
        np.testing.assert_allclose(one.logprobs, rebuilt, atol=1e-4)
    # Were it behind the norm, the head alone would rebuild them, and norm and head would not.
    without_norm = _next_token_logprobs(last, weights, one.token_ids)
    assert np.abs(without_norm - one.logprobs).max() > 0.1


def _next_token_logprobs(
    normed: np.ndarray, weights: dict[str, np.ndarray], token_ids: np.ndarray
) -> np.ndarray:
    logits = (normed @ weights["lm_head.weight"].T)[:-1]
    shifted = logits - logits.max(-1, keepdims=True)
    logprobs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return logprobs[np.arange(len(logprobs)), token_ids[1:]]


def test_no_two_depths_are_equal(made):
    states = made["length-33"].hidden_states
    for a in range(LAYERS + 1):
        for b in range(a):
            assert np.abs(states[:, a] - states[:, b]).max() > 0.1


def test_the_wrapper_gives_the_same_bits_and_runs_no_code_of_the_checkpoint(made, tmp_path: Path):
    wrapper = models.make("kimi-k2.5-tiny", tmp_path / "wrapper", architecture="wrapper")
    trap = tmp_path / "code-ran"
    scripts = list(wrapper.glob("*.py"))
    assert scripts
    for script in scripts:
        script.write_text(f"open({str(trap)!r}, 'w').close()\nraise SystemExit(9)\n")
    with ReferenceHost(wrapper, PYTHON, tmp_path / "out") as host:
        assert host.info["wrapped"] is True
        # Another order than before: no prompt may leave a trace in the next one.
        again = host.compute(dict(reversed(_prompts().items())))
    assert not trap.exists()
    for key, one in made.items():
        for name in ("hidden_states", "routing_gap", "logprobs", "token_ids"):
            np.testing.assert_array_equal(getattr(again[key], name), getattr(one, name))


def test_twins_are_equal_and_shared_prefixes_give_equal_rows(made):
    np.testing.assert_array_equal(made["twin-a"].hidden_states, made["twin-b"].hidden_states)
    short, long = made["shared-1"].hidden_states[:96], made["shared-40"].hidden_states[:96]
    assert np.abs(short - long).max() / np.abs(long).max() < 1e-5


def test_the_shipped_prompts_have_few_near_ties(made):
    # Prompts set aside prove nothing; the tiny model and these prompts are chosen to have few.
    ties = [key for key, one in made.items() if (one.routing_gap < 1e-5).any()]
    assert len(ties) <= 0.05 * len(made), ties


@pytest.mark.parametrize(("ids", "found"), [([], "empty"), ([1, 512], "512"), ([-1], "-1")])
def test_a_prompt_outside_the_vocabulary_is_refused_and_the_child_lives_on(
    plain_reference, made, ids, found
):
    with pytest.raises(UsageError, match=found) as caught:
        plain_reference.compute({"bad": ids})
    assert caught.value.failure.id == "reference.prompt"
    assert plain_reference.compute({"good": [1, 2]})["good"].token_ids.tolist() == [1, 2]


@pytest.mark.parametrize("key", ["../up", "a/b", "", ".hidden"])
def test_a_key_that_is_no_plain_file_name_is_refused(plain_reference, key):
    with pytest.raises(UsageError, match=r"reference\.key"):
        plain_reference.compute({key: [1]})


def test_an_int4_checkpoint_is_refused_for_its_twin(tmp_path: Path):
    int4 = models.make("kimi-k2.5-tiny", tmp_path / "int4", experts="int4")
    with (
        pytest.raises(UsageError, match=r"reference\.quantised") as caught,
        ReferenceHost(int4, PYTHON, tmp_path / "out"),
    ):
        pass
    assert "twin" in caught.value.failure.next


def test_a_checkpoint_without_one_weight_is_refused(tiny_plain: Path, tmp_path: Path):
    broken = tmp_path / "broken"
    shutil.copytree(tiny_plain, broken)
    lost = "model.layers.3.mlp.gate.e_score_correction_bias"
    index_file = broken / "model.safetensors.index.json"
    index = json.loads(index_file.read_text())
    shard = broken / index["weight_map"].pop(lost)
    tensors = load_file(shard)
    del tensors[lost]
    save_file(tensors, shard, metadata={"format": "pt"})
    index_file.write_text(json.dumps(index))
    with (
        pytest.raises(UsageError, match=r"e_score_correction_bias") as caught,
        ReferenceHost(broken, PYTHON, tmp_path / "out"),
    ):
        pass
    assert caught.value.failure.id == "reference.weights"


@pytest.mark.parametrize(
    ("content", "id"),
    [
        (None, "model.no-config"),
        ("{", "model.broken-config"),
        ("[]", "model.broken-config"),
        ('{"architectures": ["NoSuchForCausalLM"]}', "reference.architecture"),
        ('{"model_type": "deepseek_v3"}', "reference.architecture"),
    ],
)
def test_a_folder_that_is_no_model_is_refused(tmp_path: Path, content: str | None, id: str):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with (
        pytest.raises(UsageError) as caught,
        ReferenceHost(tmp_path, PYTHON, tmp_path / "out"),
    ):
        pass
    assert caught.value.failure.id == id


def test_a_torn_reference_file_is_an_error_not_a_reference(made, tmp_path: Path):
    torn = tmp_path / "ref_torn.safetensors"
    torn.write_bytes(made["length-17"].file.read_bytes()[:-100])
    with pytest.raises(CheckFailed, match=r"reference\.broken-file"):
        read_reference(torn)
    with pytest.raises(CheckFailed, match=r"reference\.broken-file"):
        read_reference(tmp_path / "missing.safetensors")


def _selection_gaps(cases: list[dict[str, Any]]) -> list[list[float]]:
    # torch stays out of the pytest process.
    code = textwrap.dedent(
        """
        import json, sys
        import torch
        from harness.inside.routing import selection_gap
        for case in json.load(sys.stdin):
            choice = torch.tensor(case.pop("choice"), dtype=torch.float64)
            print(json.dumps([str(gap) for gap in selection_gap(choice, **case).tolist()]))
        """
    )
    done = subprocess.run(
        [PYTHON, "-c", code],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    return [[float(gap) for gap in json.loads(line)] for line in done.stdout.splitlines()]


def test_the_selection_gap_follows_experts_and_groups():
    flat = {"choice": [[0.9, 0.1, 0.7, 0.4]], "groups": 1, "kept_groups": 1}
    # Groups (0.9, 0.1), (0.7, 0.4), (0.5, 0.45): sums 1.0, 1.1, 0.95.
    grouped = {"choice": [[0.9, 0.1, 0.7, 0.4, 0.5, 0.45]], "top_k": 2, "groups": 3}
    found = _selection_gaps(
        [
            {**flat, "top_k": 1},
            {**flat, "top_k": 2},
            {**flat, "top_k": 4},
            {**grouped, "kept_groups": 2},
            {**grouped, "kept_groups": 1},
            {**grouped, "kept_groups": 3},
        ]
    )
    assert [gap[0] for gap in found] == pytest.approx(
        # Kept groups 1 and 0: the dropped group is 0.05 behind, nearer than expert 0.7 over 0.4.
        # One kept group: 0.1 before the next, and both of its experts are chosen.
        [0.2, 0.3, np.inf, 0.05, 0.1, 0.2]
    )
