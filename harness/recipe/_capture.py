"""Lines of a capture: vLLM's own with our connector, or hooks in the worker."""

from __future__ import annotations

from collections.abc import Iterator

from harness.recipe._context import Context
from harness.recipe._types import Capture, Platform, Setting

_THREADS = 4
_MOST_THREADS = 16
_IDS = "eagle_aux_hidden_state_layer_ids"


def writer_threads(platform: Platform, capture: Capture) -> int:
    """Threads that hash, check and write samples in the worker of rank 0.

    A step on a GPU completes many samples at once, and the run is over when the last one is
    written. On an H200 with 16 cores, 65,536 tokens at Kimi width, the files of a patched capture
    were whole after 1.37, 1.33, 1.32, 1.31 and 1.30 s with 2, 4, 8, 12 and 16 threads; plain
    prefill took 1.22 s. But each thread takes the interpreter's lock from the one that prepares
    and launches the next forward; so half of the cores. Native capture hands its rows to them
    while the device has a whole forward to do, and its samples are written long before its end:
    of 524,288 tokens the last file was whole 0.05 s behind the engine's end with 8 threads, 0.035 s
    with 16.
    """
    if platform.device == "cpu":
        return _THREADS
    cores = platform.cores if capture == "native" else platform.cores // 2
    return max(_THREADS, min(_MOST_THREADS, cores))


def rules(context: Context) -> Iterator[Setting]:
    """Yield the lines of the asked capture; none for plain prefill."""
    request = context.request
    if request.capture == "patched":
        yield _watch()
    if request.capture == "native" and request.layers is not None:
        yield from _native(context)


def _watch() -> Setting:
    name = "harness.inside.scheduler.WatchingScheduler"
    return Setting(
        "scheduler_cls",
        name,
        "the release's own scheduler, made where a worker's death can be seen with its signal",
        expect={"scheduler_config.scheduler_cls": name},
    )


def _native(context: Context) -> Iterator[Setting]:
    request = context.request
    assert request.layers is not None
    depths = list(request.layers.engine_depths)
    yield Setting(
        "speculative_config",
        {
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": {_IDS: depths}},
        },
        "ids sorted and unique: the model walks layers upward, whatever order it is given",
        expect={
            "speculative_config.method": "extract_hidden_states",
            f"speculative_config.draft_model_config.hf_config.{_IDS}": depths,
        },
    )
    spool = str(request.spool)
    yield Setting(
        "kv_transfer_config",
        {
            "kv_connector": "SpoolConnector",
            "kv_connector_module_path": "harness.inside.connector",
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {
                "spool": spool,
                "shared_storage_path": spool,
                "use_synchronization_lock": False,
                "writer_threads": writer_threads(request.platform, request.capture),
            },
        },
        "our connector writes and checks rows; the stock one needs pinned memory and takes a "
        "file lock on the step's path",
        expect={
            "kv_transfer_config.kv_connector": "SpoolConnector",
            "kv_transfer_config.kv_role": "kv_producer",
        },
    )
