"""Contracts of the mock's model: its rows, its nesting, its hooks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fixtures.mock_vllm import COLUMNS, expected_rows, install
from harness.seams import releases
from tests.unit.mock_engines import Engine, prompt

RELEASES = releases()
DEPTHS = (0, 1, 3, 4)


@pytest.fixture(autouse=True)
def first_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests read the batch of the first runner; from 0.29 it must be asked for."""
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")


def test_a_row_tells_its_token_position_depth_and_way() -> None:
    assert COLUMNS == ("token", "position", "depth", "trail")
    assert expected_rows([7, 8], 0, start=3).tolist() == [[7, 0, 0, 0], [8, 0, 0, 0]]
    assert expected_rows([7, 8], 2, start=3).tolist() == [[7, 3, 2, 4], [8, 4, 2, 4]]


def test_normed_rows_are_not_taken_for_rows_of_the_stream() -> None:
    with install("0.16.0"):
        body = Engine().runner().model.model
        normed = body([7, 8], [3, 4], None)
        assert np.array_equal(-normed, expected_rows([7, 8], 4, start=3))


def test_rows_have_the_methods_of_tensors_that_captures_call() -> None:
    with install("0.16.0"):
        rows = Engine().runner().model.model([7, 8], [3, 4], None)
    assert rows[:1].clone().detach().cpu().numpy().shape == (1, 4)
    with pytest.raises(RuntimeError) as refusal:
        bool(rows)
    assert str(refusal.value) == "Boolean value of Tensor with more than one value is ambiguous"


def test_hooks_see_change_and_leave() -> None:
    with install("0.16.0"):
        layer = Engine().runner().model.model.layers[1]
        told: list[str] = []

        def before(module: Any, args: Any, kwargs: Any) -> Any:
            told.append("before")
            return args, {**kwargs, "residual": None}

        handles = [
            layer.register_forward_pre_hook(before, with_kwargs=True),
            layer.register_forward_pre_hook(lambda m, a: told.append("first"), prepend=True),
            layer.register_forward_hook(lambda m, a, result: told.append("after")),
        ]
        given = {"positions": [3], "hidden_states": expected_rows([7], 1, 3), "residual": 99}
        hidden, residual = layer(**given)
        assert told == ["first", "before", "after"]
        assert np.array_equal(hidden + residual, expected_rows([7], 2, 3))
        for handle in handles:
            handle.remove()
        layer(**given)
        assert told == ["first", "before", "after"]


@pytest.mark.parametrize("release", RELEASES)
def test_rows_of_cut_reordered_prompts_are_those_of_their_tokens(release: str) -> None:
    with install(release, scramble=True):
        engine = Engine(budget=48)
        engine.watch(*DEPTHS)
        prompts = [prompt(length, number) for number, length in enumerate((40, 50, 100, 9, 1))]
        ids = [engine.add(tokens, output=2) for tokens in prompts]
        engine.run()
        for request_id, tokens in zip(ids, prompts, strict=True):
            for depth in DEPTHS:
                rows = engine.rows(request_id, depth)
                assert np.array_equal(rows[: len(tokens)], expected_rows(tokens, depth))


@pytest.mark.parametrize(
    ("release", "walk"),
    [
        ("0.15.0", ("language_model",)),
        ("0.15.1", ("language_model",)),
        ("0.16.0", ("language_model", "model")),
        ("0.32.0", ("language_model", "model")),
    ],
)
def test_wrapper_holds_the_body_as_the_release_nests_it(
    release: str, walk: tuple[str, ...]
) -> None:
    with install(release, kimi=True):
        engine = Engine()
        model = engine.runner().model
        assert type(model).__name__ == "KimiK25ForConditionalGeneration"
        with pytest.raises(AttributeError) as refusal:
            _ = model.model
        assert str(refusal.value) == (
            "'KimiK25ForConditionalGeneration' object has no attribute 'model'"
        )
        for name in walk:
            model = getattr(model, name)
        assert type(model).__name__ == "DeepseekV2Model"
        engine.watch(*DEPTHS)
        request_id = engine.add(prompt(70))
        engine.run()
        assert np.array_equal(engine.rows(request_id, 4), expected_rows(prompt(70), 4))


def test_wrapper_is_refused_where_the_release_has_none() -> None:
    with install("0.14.1", kimi=True), pytest.raises(ValueError, match="not supported"):
        Engine()


@pytest.mark.parametrize(
    ("release", "there", "gone"),
    [
        ("0.11.0", "get_input_embeddings", "embed_input_ids"),
        ("0.11.1", "embed_input_ids", "get_input_embeddings"),
    ],
)
def test_embedding_lookup_was_renamed_in_0_11_1(release: str, there: str, gone: str) -> None:
    with install(release):
        body = Engine().runner().model.model
        assert np.array_equal(getattr(body, there)([3, 4]), expected_rows([3, 4], 0))
        with pytest.raises(AttributeError) as refusal:
            getattr(body, gone)
    assert str(refusal.value) == f"'DeepseekV2Model' object has no attribute '{gone}'"


@pytest.mark.parametrize(("release", "supported"), [("0.17.1", False), ("0.18.0", True)])
def test_deepseek_supports_eagle3_from_0_18(release: str, supported: bool) -> None:
    with install(release):
        from vllm.model_executor.models.interfaces import supports_eagle3

        assert supports_eagle3(Engine().runner().model) is supported
