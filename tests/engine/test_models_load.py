"""The made checkpoints in real stacks: transformers and vLLM load them and agree.

No part of the harness's own engine takes part here: a plain vLLM's prompt log-probabilities
are held against transformers', each in a process of its own.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from harness import models

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).parent / "_scripts"
TINY = "kimi-k2.5-tiny"
TEXT_ONLY = {"language_model_only": True}
INT4 = {"worker_extension_cls": "harness.inside.worker.WorkerExtension"}
LENGTHS = (40, 255)
Logprobs = list[npt.NDArray[np.float64]]
Make = Callable[..., Path]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    made: dict[str, Path] = {}

    def of(architecture: str, experts: str = "dense") -> Path:
        name = f"{architecture}-{experts}"
        if name not in made:
            folder = tmp_path_factory.mktemp("models") / name
            made[name] = models.make(TINY, folder, architecture=architecture, experts=experts)
        return made[name]

    return of


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw = random.Random(3)
    placeholder = models.KIMI_K25_TINY.media_placeholder_id
    allowed = [token for token in range(512) if token != placeholder]
    ids = [[draw.choice(allowed) for _ in range(length)] for length in LENGTHS]
    path = tmp_path_factory.mktemp("prompts") / "prompts.json"
    path.write_text(json.dumps(ids))
    return path


def run(
    script: str, *arguments: str, env: dict[str, str] | None = None, answer: Path | None = None
) -> str:
    """Run one of the scripts in a process of its own and return what it printed.

    Once the answer is written, the rest is vLLM's own end in a process without the harness: on
    busy cores it was seen to fail there.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        **(env or {}),
    }
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / script), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=420,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    said = f"exit code {done.returncode}; {(done.stdout + done.stderr)[-6000:]}"
    assert done.returncode == 0 or (answer is not None and answer.exists()), said
    return done.stdout


def logprobs(script: str, model: Path, prompts: Path, out: Path, **more: Any) -> Logprobs:
    arguments = more.pop("arguments", None)
    extra = [] if arguments is None else [json.dumps(arguments)]
    run(script, str(model), str(prompts), str(out), *extra, answer=out, **more)
    found = [np.array(row) for row in json.loads(out.read_text())]
    assert [len(row) for row in found] == [length - 1 for length in LENGTHS]
    return found


def apart(left: Logprobs, right: Logprobs) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(left, right, strict=True))


@pytest.fixture(scope="module")
def dense_reference(
    make: Make, prompts: Path, tmp_path_factory: pytest.TempPathFactory
) -> Logprobs:
    out = tmp_path_factory.mktemp("hf") / "dense.json"
    return logprobs("hf_logprobs.py", make("plain"), prompts, out)


@pytest.fixture(scope="module")
def twin_reference(make: Make, prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> Logprobs:
    out = tmp_path_factory.mktemp("hf") / "twin.json"
    return logprobs("hf_logprobs.py", make("plain", "int4-twin"), prompts, out)


@pytest.mark.slow
def test_wrapper_in_plain_vllm_equals_transformers(
    make: Make, prompts: Path, dense_reference: Logprobs, tmp_path: Path
) -> None:
    found = logprobs(
        "plain_logprobs.py", make("wrapper"), prompts, tmp_path / "v.json", arguments=TEXT_ONLY
    )
    # Measured 6e-6; a wrong rotary kernel gives 3e-2 and more.
    assert apart(found, dense_reference) < 4e-5


@pytest.mark.slow
def test_int4_experts_with_the_stand_in_equal_the_dequantised_twin(
    make: Make,
    prompts: Path,
    dense_reference: Logprobs,
    twin_reference: Logprobs,
    tmp_path: Path,
) -> None:
    found = logprobs(
        "plain_logprobs.py",
        make("wrapper", "int4"),
        prompts,
        tmp_path / "v.json",
        arguments={**TEXT_ONLY, **INT4},
        env={"HARNESS_PRELOAD": "harness.inside.int4_cpu"},
    )
    assert apart(found, twin_reference) < 4e-5
    # The unquantised weights are far off, so that the twin is not met by insensitivity.
    assert apart(found, dense_reference) > 0.1


@pytest.mark.slow
def test_plain_architecture_in_plain_vllm_equals_transformers(
    make: Make, prompts: Path, dense_reference: Logprobs, tmp_path: Path
) -> None:
    found = logprobs("plain_logprobs.py", make("plain"), prompts, tmp_path / "v.json", arguments={})
    assert apart(found, dense_reference) < 4e-5


@pytest.mark.slow
def test_wrapper_with_its_vision_tower_equals_transformers(
    make: Make, prompts: Path, dense_reference: Logprobs, tmp_path: Path
) -> None:
    # Without language_model_only vLLM builds the tower, loads its weights and profiles it.
    found = logprobs(
        "plain_logprobs.py", make("wrapper"), prompts, tmp_path / "v.json", arguments={}
    )
    assert apart(found, dense_reference) < 4e-5


@pytest.mark.slow
def test_int4_experts_over_two_ranks_equal_the_dequantised_twin(
    make: Make, prompts: Path, twin_reference: Logprobs, tmp_path: Path
) -> None:
    found = logprobs(
        "plain_logprobs.py",
        make("wrapper", "int4"),
        prompts,
        tmp_path / "v.json",
        arguments={**TEXT_ONLY, **INT4, "tensor_parallel_size": 2},
        env={
            "HARNESS_PRELOAD": "harness.inside.int4_cpu",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
        },
    )
    assert apart(found, twin_reference) < 4e-5


def test_tokenizer_image_processor_and_config_class_of_the_checkpoint_load(
    make: Make, tmp_path: Path
) -> None:
    out = run("checkpoint_parts.py", str(make("wrapper")), env={"HF_HOME": str(tmp_path)})
    found = json.loads(out.splitlines()[-1])
    assert found["tokens"] == [*"héllo ".encode(), 258]
    assert found["text"] == "héllo <|im_end|>"
    assert found["specials"] == [256, 257, 511]
    assert found["placeholder"] == 277
    assert found["chat"] == (
        "<|im_user|>user<|im_middle|>hi<|im_end|><|im_assistant|>assistant<|im_middle|>yo<|im_end|>"
    )
    assert found["processor"] == "TinyKimiImageProcessor"
    assert found["media_tokens"] == 4
    assert found["patches"] == [[32, 3, 14, 14], [[1, 4, 4]] * 2]
    assert found["config_layers"] == 6


def test_int4_stand_in_fits_this_vllm_and_refuses_a_broken_seam() -> None:
    found = json.loads(run("int4_seam.py").splitlines()[-1])
    assert found["problems"] == []
    assert found["elsewhere"].startswith("int4-cpu.not-a-cpu: ")
    for name, words in {
        "other signature": "create_weights takes module, sizes",
        "no method": "no CompressedTensorsWNA16MoEMethod",
        "no unquantised": "no UnquantizedFusedMoEMethod",
    }.items():
        assert found[name].startswith("int4-cpu.no-seam: ")
        assert words in found[name]
    assert found["untouched"]
    assert (found["first"], found["second"]) == ("installed", "installed")
    assert found["once"]
    assert found["name"] == "CompressedTensorsWNA16MoEMethod"
    assert found["layouts agree"]
    assert found["one value"][0] == pytest.approx(found["one value"][1], rel=1e-7)
