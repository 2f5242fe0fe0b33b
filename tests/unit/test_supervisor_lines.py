"""What the supervisor reads from log lines: who, how loud, which phase, which known end."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.host.supervision import fatal
from harness.host.supervision.loglines import LogFollower, LogLine, parse
from harness.host.supervision.phases import LoadTrack, Phase, Sighting, sight
from harness.host.supervision.policy import DEFAULT_ACTIONS

LOGS = Path(__file__).parents[2] / "fixtures" / "engine_logs"
ALL = ["0.16.0-cpu-tp2", "0.26.0-cuda-tp2", "0.32.0-cpu-tp1"]
EXAMPLES = {
    "ptx-toolchain": "torch.AcceleratorError: CUDA error: the provided PTX was compiled with an "
    "unsupported toolchain.",
    "no-kernel-image": "RuntimeError: CUDA error: no kernel image is available for execution on "
    "the device",
    "gpu-out-of-memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "gpu-not-free": "ValueError: Free memory on device cuda:0 (3.1/139.8 GiB) on startup is less "
    "than desired GPU memory utilization (0.85, 118.8 GiB).",
    "no-kv-room": "ValueError: No available memory for the cache blocks. Try increasing "
    "`gpu_memory_utilization`",
    "kv-too-small": "ValueError: To serve at least one request with the model's max seq len (8192)",
    "thread-config": "RuntimeError: Invalid thread config: thread_m_blocks = 4, thread_k = -1",
    "not-divisible": "ValueError: Weight input_size_per_partition = 7392 is not divisible by "
    "min_thread_k = 128",
    "no-scheme": "NotImplementedError: No compressed-tensors compatible scheme was found.",
    "kv-page-size": "    assert self.page_size_padded >= real_page_size",
    "missing-weight": "KeyError: 'embed_tokens.weight'",
    "nccl-system": "ncclSystemError: System call (e.g. socket, malloc) or external library call "
    "failed or device error.",
    "fabric-manager": "RuntimeError: Error 802: system not yet initialized",
    "gpu-ecc": "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "gpu-lost": "NVMLError_GpuIsLost: GPU is lost",
    "cuda-after-fork": "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA",
    "remote-code": "Do you wish to run the custom code? [y/N] ",
    "tokenizer": "ValueError: Couldn't instantiate the backend tokenizer from one of",
    "shard-header": "safetensors_rust.SafetensorError: Error while deserializing header: "
    "InvalidHeaderDeserialization",
    "disk-full": "OSError: [Errno 28] No space left on device: '/dev/shm/x'",
    "rpc-timeout": "TimeoutError: RPC call to sample_tokens timed out.",
    "worker-failed": "WorkerProc failed to start.",
}


def lines(name: str) -> list[LogLine]:
    return LogFollower(LOGS / f"{name}.log", 0).read()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("0.16.0-cpu-tp2", "download check, weights, post-processing, KV cache, warm-up, ready"),
        (
            "0.26.0-cuda-tp2",
            "download check, weights, post-processing, profiling, KV cache, warm-up, ready",
        ),
        ("0.32.0-cpu-tp1", "download check, weights, post-processing, KV cache, ready"),
    ],
)
def test_phases_are_read_from_logs_of_each_release(name: str, expected: str) -> None:
    track = LoadTrack(0.0)
    seen, counts = [], []
    for number, line in enumerate(lines(name)):
        before = track.phase
        sighting = sight(line)
        if sighting and track.see(sighting, float(number)):
            counts.append((track.done, track.total))
            if track.phase is not before:
                seen.append(track.phase.value)
    assert ", ".join(seen) == expected
    shards = 3 if "cuda" in name else 2
    assert (shards, shards) in counts


@pytest.mark.parametrize("name", ALL)
def test_no_line_of_a_load_that_succeeded_is_fatal(name: str) -> None:
    found = [line for line in lines(name) if fatal.recognise(line) or fatal.informational(line)]
    assert found == []


def test_every_fatal_kind_is_recognised_by_its_reported_line_on_any_rank() -> None:
    assert set(EXAMPLES) == {kind.id for kind in fatal.KINDS}
    for prefix in ("", "(Worker_TP7 pid=9) ", "(EngineCore_DP0 pid=8) ERROR 01-01 00:00:00 [a:1] "):
        for id, text in EXAMPLES.items():
            kind = fatal.recognise(parse(prefix + text))
            assert kind is not None, text
            assert kind.id == id


@pytest.mark.parametrize(
    "line",
    [
        "(EngineCore pid=1) INFO 11-29 23:27:45 [shm_broadcast.py:542] No available shared memory "
        "broadcast block found in 60 seconds. This typically happens when some processes are "
        "hanging or doing some time-consuming work.",
        "(Worker pid=1) WARNING 11-29 23:27:46 [base.py:380] torch.OutOfMemoryError: CUDA out of "
        "memory, trying a smaller one",
        "The argument `trust_remote_code` is to be used with Auto classes. It has no effect here "
        "and is ignored.",
        "W1129 23:28:04.598000 18469 torch/utils/cpp_extension.py:118] No CUDA runtime is found",
        "[W1129 23:27:41.052409166 utils.cpp:68] Warning: Invalid thread config: guessed",
    ],
)
def test_informational_line_is_not_fatal(line: str) -> None:
    assert fatal.recognise(parse(line)) is None


def test_line_is_taken_apart_into_process_level_and_text() -> None:
    line = parse("(Worker_TP1 pid=18862) WARNING 11-29 23:29:17 [multiproc_executor.py:797] gone")
    assert (line.process, line.pid, line.level, line.text) == (
        "Worker_TP1",
        18862,
        "WARNING",
        "gone",
    )
    assert line.quiet
    assert line.who == "Worker_TP1 (pid 18862)"
    bar = parse("(Worker_TP0 pid=5) \rCapturing:  0%| 0/3\rCapturing: 33%| 1/3")
    assert (bar.process, bar.text) == ("Worker_TP0", "Capturing: 33%| 1/3")
    assert parse("\x1b[1;36m(Worker pid=5)\x1b[0;0m ValueError: x").text == "ValueError: x"


def test_load_goes_only_forward_and_counts_its_shards() -> None:
    track = LoadTrack(10.0)
    assert track.see(Sighting(Phase.WEIGHTS, 3, 64), 20.0)
    assert track.where == "weights 3 of 64"
    # Another rank that is behind.
    assert not track.see(Sighting(Phase.WEIGHTS, 2, 64), 21.0)
    assert track.see(Sighting(Phase.POST), 50.0)
    # The drafter's own weights.
    assert not track.see(Sighting(Phase.WEIGHTS, 1, 1), 51.0)
    assert track.where == "post-processing"
    track.finish(60.0)
    assert track.seconds == {"import": 10.0, "weights": 30.0, "post-processing": 10.0}


def test_follower_gives_each_line_once_and_a_question_without_an_end_too(tmp_path: Path) -> None:
    path = tmp_path / "log"
    follower = LogFollower(path, 3)
    assert follower.read() == []
    path.write_bytes(b"oldone\ntwo\nDo you")
    assert [line.text for line in follower.read()] == ["one", "two"]
    with path.open("ab") as file:
        file.write(b" wish? ")
    assert follower.read() == []
    assert [line.text for line in follower.read()] == ["Do you wish? "]
    assert follower.read() == []
    with path.open("ab") as file:
        file.write(b"\nthree\n")
    assert [line.text for line in follower.read()] == ["three"]


def rows(title: str) -> list[list[str]]:
    """The cells of the first table under a heading of the document."""
    text = (LOGS.parents[1] / "docs" / "supervisor.md").read_text()
    section = text.split(f"\n## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def test_document_lists_every_fatal_kind_as_the_code_has_it() -> None:
    expected = [
        [f"`{kind.id}`", f"{kind.means}.{' *Load.*' if kind.load_only else ''}", kind.source]
        for kind in fatal.KINDS
    ]
    assert rows("Known-fatal kinds") == expected


def test_document_lists_every_phase_and_every_danger_with_its_action() -> None:
    assert [row[0] for row in rows("Phases")] == [phase.value for phase in Phase]
    actions = {row[0].strip("`"): row[2] for row in rows("Dangers")}
    assert actions == {danger.value: action.value for danger, action in DEFAULT_ACTIONS.items()}


def test_every_kind_names_its_source_and_a_next_step() -> None:
    assert len({kind.id for kind in fatal.KINDS}) == len(fatal.KINDS)
    for kind in fatal.KINDS:
        assert kind.source
        assert kind.next
