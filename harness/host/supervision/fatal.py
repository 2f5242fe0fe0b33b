"""Lines after which a load, or a loaded engine, cannot succeed any more. Pure.

Each kind names the public report it comes from and the releases it was seen or read in.
A line that its own writer calls a warning or less is never fatal: vLLM logs whole
tracebacks of things it can do without as warnings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from harness.host.supervision.loglines import LogLine


@dataclass(frozen=True)
class FatalKind:
    """One known end.

    Attributes:
        id: Its stable name.
        pattern: Found anywhere in the text of such a line.
        means: What has happened, in one sentence.
        source: The report or file that it comes from, with the releases.
        next: What the user can do.
        general: It says that something failed, not what; a line that says what is preferred.
        load_only: It ends a load; a loaded engine may live with it.
    """

    id: str
    pattern: re.Pattern[str]
    means: str
    source: str
    next: str
    general: bool = False
    load_only: bool = False


def _kind(id: str, pattern: str, means: str, source: str, next: str, **more: bool) -> FatalKind:
    return FatalKind(id, re.compile(pattern), means, source, next, **more)


KINDS: Final = (
    _kind(
        "ptx-toolchain",
        r"provided PTX was compiled with an unsupported toolchain",
        "the driver is older than the CUDA of the installed wheels",
        "vllm#38619 (0.17.1, 0.18.0, Kimi-K2.5 on H200, after 64 of 64 shards)",
        "update the driver, or install wheels built for its CUDA",
    ),
    _kind(
        "no-kernel-image",
        r"no kernel image is available for execution on the device",
        "the wheels hold no device code for this GPU",
        "CUDA error 209 in torch (any release)",
        "install wheels built for this GPU",
    ),
    _kind(
        "gpu-out-of-memory",
        r"OutOfMemoryError: |CUDA out of memory|CUDA error: out of memory",
        "a GPU has no room for the model beside what else is on it",
        "granite-switch#123, TensorRT-LLM#15099 (any release)",
        "look who else is on the GPU, or lower --gpu-memory-utilization",
    ),
    _kind(
        "gpu-not-free",
        r"Free memory on device .*is less than desired GPU memory utilization",
        "a GPU has less free memory than the engine was told to take",
        "vLLM's own check (v1/worker/utils.py of 0.16, 0.26 and 0.32)",
        "free the GPU, or lower --gpu-memory-utilization",
    ),
    _kind(
        "no-kv-room",
        r"No available memory for the cache blocks",
        "the weights leave no memory for a KV cache",
        "vLLM's own check (v1/core/kv_cache_utils.py of 0.16, 0.26 and 0.32)",
        "raise --gpu-memory-utilization, or spread the model over more GPUs",
    ),
    _kind(
        "kv-too-small",
        r"To serve at least one request with the model's max seq len",
        "the memory for the KV cache does not hold one request",
        "vllm#53243 (0.26.0)",
        "lower --max-model-len, or raise --gpu-memory-utilization",
    ),
    _kind(
        "thread-config",
        r"Invalid thread config: ",
        "the quantised kernel knows no shape for this size per rank",
        "vllm#41161",
        "choose another tensor parallel size",
    ),
    _kind(
        "not-divisible",
        r"is not divisible by min_thread_[kn]|size_k must divisible by BLOCK_SIZE_K",
        "the tensor parallel size cuts a quantisation group",
        "llm-compressor#57, vllm#17604",
        "choose another tensor parallel size",
    ),
    _kind(
        "no-scheme",
        r"No compressed-tensors compatible scheme was found",
        "this vLLM cannot run the checkpoint's quantisation here",
        "vllm-ascend#7076; raised in 0.16, 0.26 and 0.32",
        "take another vLLM release or other hardware",
    ),
    _kind(
        "kv-page-size",
        r"page_size_padded >= ",
        "the hidden-state cache and the KV cache cannot share a page size",
        "vllm#51016 (0.25.1, 0.26.0 on H200, tensor parallel)",
        "use --capture patched, or another vLLM release",
    ),
    _kind(
        "missing-weight",
        r"KeyError: '[\w.]+\.weight(?:_packed|_scale)?'",
        "the model class expects other tensor names than the checkpoint has",
        "vllm-ascend#7350 (Kimi-K2.5)",
        "take a vLLM release that knows this checkpoint",
        load_only=True,
    ),
    _kind(
        "nccl-system",
        r"ncclSystemError: |Error while creating shared memory segment /dev/shm/nccl-",
        "NCCL got no socket, memory or shared memory from the system",
        "torchtitan#853, production-stack#276, nccl#342",
        "give the container a larger /dev/shm (--shm-size), then look at its limits",
    ),
    _kind(
        "fabric-manager",
        r"Error 802: system not yet initialized",
        "the GPUs' fabric manager is missing or of another version than the driver",
        "huggingface_hub#4128, pytorch#35710",
        "start nvidia-fabricmanager of the driver's version",
    ),
    _kind(
        "gpu-ecc",
        r"CUDA error: uncorrectable ECC error encountered",
        "a GPU's memory is broken",
        "vllm#5222",
        "take the GPU out of service; CUDA_VISIBLE_DEVICES chooses others",
    ),
    _kind(
        "gpu-lost",
        r"GPU is lost|GPU has fallen off the bus",
        "a GPU does not answer any more",
        "nvgpu#6, nvitop#139",
        "reset or restart the machine",
    ),
    _kind(
        "cuda-after-fork",
        r"Cannot re-initialize CUDA in forked subprocess",
        "something used CUDA before the workers were forked",
        "vllm#28965, vllm#9469",
        "VLLM_WORKER_MULTIPROC_METHOD=spawn, and look who touched CUDA first",
    ),
    _kind(
        "remote-code",
        r"Do you wish to run the custom code\?"
        r"|Please pass the argument `trust_remote_code=True` to allow custom code",
        "the checkpoint brings code, and running it was not allowed",
        "recipes#116, guidellm#860; transformers asks on standard input",
        "read the checkpoint's *.py files, then add --trust-remote-code",
    ),
    _kind(
        "tokenizer",
        r"Couldn't instantiate the backend tokenizer|Could not extract SentencePiece model",
        "the installed transformers cannot read the checkpoint's tokenizer",
        "TensorRT-LLM#14741 (transformers 5.5.3; 5.3.0 and 5.5.4 are fine)",
        "install another transformers release",
        load_only=True,
    ),
    _kind(
        "shard-header",
        r"Error while deserializing header|InvalidHeaderDeserialization"
        r"|MetadataIncompleteBuffer|HeaderTooLarge",
        "a weight file is cut off or only a pointer",
        "vllm#14596, vllm#13899, airllm#137",
        "fetch the checkpoint again; `harness doctor --model DIR` names the file",
    ),
    _kind(
        "disk-full",
        r"OSError: \[Errno 28\] No space left on device",
        "a disk, or /dev/shm, is full",
        "vllm#51579 (shared memory); any release",
        "free space on what the line names, stale files in /dev/shm included",
        load_only=True,
    ),
    _kind(
        "rpc-timeout",
        r"RPC call to \w+ timed out",
        "a worker has not answered and the engine has given it up",
        "vllm#41530, vllm#40926 (the process stays up)",
        "look at the workers' last lines",
        general=True,
    ),
    _kind(
        "worker-failed",
        r"WorkerProc failed to start\.|WorkerProc initialization failed"
        r"|EngineCore failed to start\.|Engine core initialization failed"
        r"|EngineCore encountered a fatal error|Worker proc \S+ died unexpectedly",
        "a worker or the engine's core has raised",
        "v1/executor/multiproc_executor.py and v1/engine/core.py of 0.16, 0.26 and 0.32",
        "read the traceback in the log",
        general=True,
    ),
)

INFORMATIONAL: Final = (
    # vllm#27313, vllm#46611; closed as informational in vllm#43420.
    re.compile(r"No available shared memory broadcast block found in \d+ seconds"),
)
"""Lines that end nothing, and that are no progress either: a waiting engine repeats them."""

_RAISED = re.compile(r"^\s*(?:[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit))(?::|$)")


def recognise(line: LogLine) -> FatalKind | None:
    """Return the known end that a line tells of."""
    if line.quiet:
        return None
    return next((kind for kind in KINDS if kind.pattern.search(line.text)), None)


def informational(line: LogLine) -> bool:
    """Tell whether a line is one that a waiting engine repeats."""
    return any(pattern.search(line.text) for pattern in INFORMATIONAL)


def raised(line: LogLine) -> bool:
    """Tell whether this is the last line of a traceback: the exception itself."""
    return not line.quiet and _RAISED.match(line.text) is not None
