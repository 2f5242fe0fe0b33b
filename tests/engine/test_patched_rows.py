"""Row bookkeeping of the patched capture, on a runner small enough to be told what to do.

The forward is a real torch module with hooks; the batches are those that vLLM's V1 runner can
make: cut prompts, another order than the scheduler's, preemption, aborts, padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from safetensors.torch import load_file  # noqa: E402

from harness.inside import patched  # noqa: E402
from harness.inside.patched import CaptureError, PatchedCapture  # noqa: E402
from harness.inside.results import Results  # noqa: E402
from harness.inside.spool import SpoolWriter  # noqa: E402

pytestmark = pytest.mark.engine
HIDDEN, LAYERS = 4, 3


class Layer(torch.nn.Module):
    def forward(self, positions: Any, hidden_states: Any, residual: Any) -> Any:
        if residual is None:
            return hidden_states * 0 + 1, hidden_states
        return hidden_states * 0 + 1, residual + hidden_states


class Norm(torch.nn.Module):
    def forward(self, *args: Any) -> Any:
        hidden, residual = args
        return hidden + residual, residual


class Decoder(torch.nn.Module):
    """Depth k of token t at position p is t + p / 1000 + k, the same in each of its values."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(512, HIDDEN)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = Norm()
        table = torch.arange(512.0).unsqueeze(1).expand(512, HIDDEN)
        self.embed_tokens.weight.data = table.clone()

    def forward(self, ids: Any, positions: Any) -> Any:
        hidden = self.embed_tokens(ids) + positions.unsqueeze(1) / 1000
        residual = None
        for layer in self.layers:
            hidden, residual = layer(positions, hidden, residual)
        return self.norm(hidden, residual)


class GPUModelRunner:
    """The part of vLLM's V1 runner that the capture reads; its module name is set below."""

    def __init__(self) -> None:
        self.model = SimpleNamespace(model=Decoder())
        self.requests: dict[str, Any] = {}
        self.input_batch: Any = None
        self.use_async_scheduling = False
        self.spoil: Callable[[Any, Any], tuple[Any, Any]] | None = None
        self.pad = 0

    def add(self, request: str, prompt: list[int], *, key: str | None, probe: Any = None) -> None:
        extra = None if key is None else {"hs": {"key": key, "probe": probe}}
        self.requests[request] = SimpleNamespace(
            prompt_token_ids=prompt, sampling_params=SimpleNamespace(extra_args=extra)
        )

    @torch.inference_mode()
    def execute_model(self, step: Any) -> None:
        for request in step.finished_req_ids:
            self.requests.pop(request, None)
        if not step.num_scheduled_tokens:
            return
        order, starts = step.order, step.starts
        self.input_batch = SimpleNamespace(
            req_ids=order,
            num_reqs=len(order),
            num_computed_tokens_cpu=[starts[request] for request in order],
        )
        ids: list[int] = []
        positions: list[int] = []
        for request in order:
            start, count = starts[request], step.num_scheduled_tokens[request]
            prompt = [*self.requests[request].prompt_token_ids, *range(400, 410)]
            ids += prompt[start : start + count]
            positions += range(start, start + count)
        pad = [0] * self.pad
        given = torch.tensor(ids + pad), torch.tensor(positions + pad)
        self.model.model(*(self.spoil(*given) if self.spoil else given))


GPUModelRunner.__module__ = "vllm.v1.worker.gpu_model_runner"


def step(
    counts: dict[str, int],
    starts: dict[str, int] | None = None,
    *,
    order: list[str] | None = None,
    finished: tuple[str, ...] = (),
) -> Any:
    return SimpleNamespace(
        num_scheduled_tokens=counts,
        starts={**dict.fromkeys(counts, 0), **(starts or {})},
        order=order or list(counts),
        finished_req_ids=set(finished),
    )


@pytest.fixture
def runner() -> GPUModelRunner:
    return GPUModelRunner()


@pytest.fixture
def capture(runner: GPUModelRunner, tmp_path: Path) -> Iterator[PatchedCapture]:
    one = PatchedCapture(runner, [2, 0, 1], LAYERS, SpoolWriter(tmp_path, threads=1))
    yield one
    one.remove()


def lines(folder: Path, *keys: str) -> dict[str, Any]:
    return {line["key"]: line for line in Results(folder).collect(keys, deadline_s=20)}


def truth(prompt: list[int], depths: tuple[int, ...] = (2, 0, 1)) -> Any:
    rows = [[[t + p / 1000 + d] * HIDDEN for d in depths] for p, t in enumerate(prompt)]
    return torch.tensor(rows)


def assert_rows(folder: Path, key: str, prompt: list[int]) -> None:
    (line,) = lines(folder, key).values()
    assert "error" not in line, line
    file = load_file(folder / f"{key}.safetensors")
    assert file["token_ids"].tolist() == prompt
    torch.testing.assert_close(file["hidden_states"], truth(prompt), rtol=0, atol=1e-4)


A, B, C = [10, 11, 12, 13, 14], [20, 21, 22], [30, 31]


def test_columns_are_in_the_asked_order(
    runner: GPUModelRunner, capture: PatchedCapture, tmp_path: Path
) -> None:
    runner.add("r1", A, key="a")
    runner.execute_model(step({"r1": 5}))
    assert_rows(tmp_path, "a", A)


def test_rows_follow_the_batch_and_not_the_scheduler(
    runner: GPUModelRunner, capture: PatchedCapture, tmp_path: Path
) -> None:
    for request, prompt in (("r1", A), ("r2", B), ("r3", C)):
        runner.add(request, prompt, key=request)
    runner.execute_model(step({"r1": 5, "r2": 3, "r3": 2}, order=["r3", "r1", "r2"]))
    for request, prompt in (("r1", A), ("r2", B), ("r3", C)):
        assert_rows(tmp_path, request, prompt)


def test_a_prompt_cut_in_chunks_is_joined_by_position(
    runner: GPUModelRunner, capture: PatchedCapture, tmp_path: Path
) -> None:
    runner.add("r1", A, key="a")
    runner.add("r2", B, key="b")
    runner.execute_model(step({"r1": 2}))
    assert capture.held() == {"partial": 1, "done": 0}
    runner.execute_model(step({"r1": 2, "r2": 2}, {"r1": 2}, order=["r2", "r1"]))
    runner.execute_model(step({"r1": 1, "r2": 1}, {"r1": 4, "r2": 2}))
    assert_rows(tmp_path, "a", A)
    assert_rows(tmp_path, "b", B)


def test_a_preempted_prompt_is_taken_from_its_start_again(
    runner: GPUModelRunner, capture: PatchedCapture, tmp_path: Path
) -> None:
    runner.add("r1", A, key="a")
    runner.execute_model(step({"r1": 3}))
    runner.execute_model(step({"r1": 4}))
    runner.execute_model(step({"r1": 1}, {"r1": 4}))
    assert_rows(tmp_path, "a", A)


def test_rows_of_generated_tokens_are_left_out(
    runner: GPUModelRunner, capture: PatchedCapture, tmp_path: Path
) -> None:
    runner.add("r1", A, key="a")
    runner.add("r2", B, key="b")
    runner.execute_model(step({"r1": 5}))
    runner.execute_model(step({"r1": 1, "r2": 3}, {"r1": 5}))
    assert_rows(tmp_path, "a", A)
    assert_rows(tmp_path, "b", B)


def test_requests_without_our_key_pass_by(
    runner: GPUModelRunner, capture: PatchedCapture, tmp_path: Path
) -> None:
    runner.add("r1", A, key=None)
    runner.add("r2", B, key="b")
    runner.execute_model(step({"r1": 5, "r2": 3}))
    assert_rows(tmp_path, "b", B)
    assert capture.held() == {"partial": 0, "done": 1}


def test_padding_behind_the_batch_is_cut_off(
    runner: GPUModelRunner, capture: PatchedCapture, tmp_path: Path
) -> None:
    runner.pad = 3
    runner.add("r1", A, key="a")
    runner.execute_model(step({"r1": 5}))
    assert_rows(tmp_path, "a", A)


def test_nothing_is_kept_of_ended_requests(
    runner: GPUModelRunner, capture: PatchedCapture, tmp_path: Path
) -> None:
    runner.add("r1", A, key="a")
    runner.add("r2", B, key="b")
    runner.execute_model(step({"r1": 2, "r2": 3}))
    assert capture.held() == {"partial": 1, "done": 1}
    runner.execute_model(step({}, finished=("r1", "r2")))  # r1 was aborted half-way
    assert capture.held() == {"partial": 0, "done": 0}
    assert_rows(tmp_path, "b", B)
    assert not (tmp_path / "a.safetensors").exists()


def test_the_last_depth_comes_in_a_file_of_its_own_when_asked(
    runner: GPUModelRunner, capture: PatchedCapture, tmp_path: Path
) -> None:
    runner.add("r1", A, key="a", probe=[3])
    runner.execute_model(step({"r1": 5}))
    lines(tmp_path, "a", "a.probe")
    probe = load_file(tmp_path / "a.probe.safetensors")["hidden_states"]
    torch.testing.assert_close(probe, truth(A, (3,)), rtol=0, atol=1e-4)


def test_a_later_step_does_not_touch_the_rows_of_an_earlier_one(
    runner: GPUModelRunner, capture: PatchedCapture, tmp_path: Path
) -> None:
    # Layer 0 may write into what it was given, as fused norms do.
    def overwrite(module: Any, args: Any, output: Any) -> None:
        args[1].fill_(-1)

    runner.model.model.layers[0].register_forward_hook(overwrite)
    runner.add("r1", C, key="c")
    runner.execute_model(step({"r1": 2}))
    lines(tmp_path, "c")
    file = load_file(tmp_path / "c.safetensors")
    torch.testing.assert_close(file["hidden_states"][:, 1], truth(C, (0,))[:, 0])


# --- what must not pass


def test_a_row_of_another_token_is_an_error_of_its_sample_alone(
    runner: GPUModelRunner, capture: PatchedCapture, tmp_path: Path
) -> None:
    def swapped(ids: Any, positions: Any) -> tuple[Any, Any]:
        ids[1] = 99
        return ids, positions

    runner.spoil = swapped
    runner.add("r1", A, key="a")
    runner.add("r2", B, key="b")
    runner.execute_model(step({"r1": 5, "r2": 3}))
    found = lines(tmp_path, "a", "b")
    assert "row 1 was computed from token 99, not 11" in found["a"]["message"]
    assert "error" not in found["b"]
    assert not (tmp_path / "a.safetensors").exists()


def test_a_row_of_another_position_is_an_error(
    runner: GPUModelRunner, capture: PatchedCapture, tmp_path: Path
) -> None:
    runner.spoil = lambda ids, positions: (ids, positions + 1)
    runner.add("r1", A, key="a")
    runner.execute_model(step({"r1": 5}))
    assert "at position 1" in lines(tmp_path, "a")["a"]["message"]


def test_a_reused_prefix_stops_the_step(runner: GPUModelRunner, capture: PatchedCapture) -> None:
    runner.add("r1", A, key="a")
    with pytest.raises(CaptureError, match="rows 0 up to 5 are missing"):
        runner.execute_model(step({"r1": 1}, {"r1": 4}))


def test_a_lost_chunk_stops_the_step(runner: GPUModelRunner, capture: PatchedCapture) -> None:
    runner.add("r1", A, key="a")
    runner.execute_model(step({"r1": 2}))
    with pytest.raises(CaptureError, match="rows 2 up to 5 are missing"):
        runner.execute_model(step({"r1": 2}, {"r1": 3}))


def test_fewer_rows_than_were_scheduled_stop_the_step(
    runner: GPUModelRunner, capture: PatchedCapture
) -> None:
    runner.spoil = lambda ids, positions: (ids[:-1], positions[:-1])
    runner.add("r1", A, key="a")
    with pytest.raises(CaptureError, match="5 rows were scheduled, 4 went through"):
        runner.execute_model(step({"r1": 5}))


def test_a_runner_that_schedules_asynchronously_is_refused(runner: GPUModelRunner) -> None:
    runner.use_async_scheduling = True
    with pytest.raises(CaptureError, match="asynchronously"):
        PatchedCapture(runner, [1], LAYERS, None)


def test_another_runner_than_v1_is_refused() -> None:
    other = SimpleNamespace(model=SimpleNamespace(model=Decoder()))
    with pytest.raises(CaptureError, match="is not vllm"):
        PatchedCapture(other, [1], LAYERS, None)


def test_removal_gives_the_runner_back_as_it_was(runner: GPUModelRunner, tmp_path: Path) -> None:
    before = runner.execute_model
    one = PatchedCapture(runner, [1], LAYERS, SpoolWriter(tmp_path))
    assert runner.execute_model != before
    one.remove()
    assert runner.execute_model == before
    decoder = runner.model.model
    assert not any(len(m._forward_pre_hooks) for m in decoder.modules())


def test_a_paused_capture_looks_away_and_back_again(
    runner: GPUModelRunner, capture: PatchedCapture, tmp_path: Path
) -> None:
    runner.add("r1", A, key="a")
    capture.paused = True
    runner.execute_model(step({"r1": 5}))
    assert capture.held() == {"partial": 0, "done": 0}
    capture.paused = False
    runner.execute_model(step({"r1": 5}))
    assert_rows(tmp_path, "a", A)


def test_a_rank_that_does_not_write_hooks_nothing(runner: GPUModelRunner) -> None:
    one = PatchedCapture(runner, [1], LAYERS, None)
    assert one.depths == [1, LAYERS]
    assert not any(len(m._forward_pre_hooks) for m in runner.model.model.modules())
    assert patched.PARAMS == "hs"
