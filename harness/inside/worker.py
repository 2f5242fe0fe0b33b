"""The worker extension: what the harness may ask inside every engine worker.

vLLM mixes this class into its worker (``worker_extension_cls``) and imports this
module in the worker's process before the model is built, so it is also where
modules named in ``HARNESS_PRELOAD`` install themselves.
"""

from __future__ import annotations

import importlib
import os
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from harness.inside.modelwalk import text_decoder
from harness.inside.patched import PatchedCapture
from harness.inside.spool import SpoolWriter
from harness.inside.witness import Witness, compare

PRELOAD = "HARNESS_PRELOAD"


class WorkerExtension:
    """Methods for ``collective_rpc``; all names start with ``hs_``."""

    model_runner: Any
    _hs_witness: Witness | None = None
    _hs_capture: PatchedCapture | None = None

    def hs_capture(self, depths: list[int], final: int, spool: str, threads: int) -> list[int]:
        """Start the patched capture; only rank 0 writes.

        Args:
            depths: Depth of each file column, in file order.
            final: Depth L.
            spool: Folder of the samples.
            threads: Threads that write them.
        """
        writer = SpoolWriter(Path(spool), threads=threads) if _rank() == 0 else None
        self._hs_capture = PatchedCapture(self.model_runner, depths, final, writer)
        return self._hs_capture.depths

    def hs_pause(self, paused: bool) -> None:
        """Let the patched capture look away, for a measure of the engine without it."""
        if self._hs_capture is not None:
            self._hs_capture.paused = paused

    def hs_held(self) -> dict[str, int]:
        """Count what this worker still keeps of requests, and its resident memory in kB."""
        held = self._hs_capture.held() if self._hs_capture is not None else {}
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        rss_kb = pages * os.sysconf("SC_PAGE_SIZE") // 1024
        return {**held, "requests": len(self.model_runner.requests), "rss_kb": rss_kb}

    def hs_describe(self) -> dict[str, Any]:
        """Tell what this worker really runs."""
        model = self.model_runner.model
        decoder = text_decoder(model)
        parameter = next(decoder.parameters())
        return {
            "runner": type(self.model_runner).__module__,
            "model": type(model).__name__,
            "decoder": type(decoder).__name__,
            "layers": len(decoder.layers),
            "dtype": str(self.model_runner.dtype).removeprefix("torch."),
            "device": parameter.device.type,
            "attention": _attention(decoder),
            "methods": _methods(decoder),
            "block_size": self.model_runner.cache_config.block_size,
            "pid": os.getpid(),
            "capturing": self._capturing(decoder),
        }

    def _capturing(self, decoder: Any) -> list[int]:
        own = getattr(decoder, "aux_hidden_state_layers", ())
        if not own and self._hs_capture is not None:
            return self._hs_capture.depths
        return list(own)

    def hs_arm(self, depths: list[int]) -> None:
        """Start witnessing these depths."""
        self.hs_disarm()
        # Never a capture's own place: the patched one reads on entering a layer.
        leaving = self._hs_capture is not None
        self._hs_witness = Witness(self.model_runner.model, depths, leaving=leaving)
        self._hs_witness.arm()

    def hs_disarm(self) -> None:
        """Stop witnessing and forget."""
        if self._hs_witness is not None:
            self._hs_witness.disarm()
            self._hs_witness = None

    def hs_compare(
        self, path: str, token_ids: list[int], depths: list[int]
    ) -> list[dict[str, Any]] | None:
        """Compare a written sample with the witness; None on ranks other than 0."""
        if _rank() != 0 or self._hs_witness is None:
            return None
        return compare(self._hs_witness, load_file(path)["hidden_states"], token_ids, depths)

    def hs_logprobs(self, path: str, column: int, targets: list[int]) -> list[float] | None:
        """Rebuild the prompt's log-probabilities from a written column of depth L.

        The rows go through the engine's own final norm and head, on every rank, since
        the head is sharded.

        Args:
            path: A sample file.
            column: Its column of depth L.
            targets: The next token of each row but the last: ``token_ids[1:]``.

        Returns:
            Log-probabilities of ``targets``, of the first ones where rows are missing; None on
            ranks that hold no logits.
        """
        model = self.model_runner.model
        norm = text_decoder(model).norm
        rows = load_file(path)["hidden_states"][: len(targets), column].contiguous()
        targets = targets[: len(rows)]
        device = next(norm.parameters()).device
        found: list[float] = []
        with torch.inference_mode():
            for start in range(0, len(targets), 512):
                part = rows[start : start + 512].to(device)
                logits = model.compute_logits(norm(part))
                if logits is None:
                    continue
                want = torch.tensor(targets[start : start + 512], device=logits.device)
                scores = torch.log_softmax(logits.float(), dim=-1)
                found += scores.gather(1, want.unsqueeze(1)).flatten().tolist()
        return found if found or not targets else None


def _rank() -> int:
    from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

    return int(get_tensor_model_parallel_rank())


def _attention(decoder: Any) -> str:
    """Name the attention implementation of the first layer, as built."""
    for module in decoder.layers[0].modules():
        impl = getattr(module, "impl", None)
        if impl is not None:
            return type(impl).__name__
    return "unknown"


def _methods(decoder: Any) -> dict[str, int]:
    """Count the classes that carry out each layer's weights: a quantised kernel has its own."""
    names = (
        type(method).__name__
        for module in decoder.modules()
        if (method := getattr(module, "quant_method", None)) is not None
    )
    return dict(Counter(names))


# Last, so that a preload finds this module complete.
for _name in filter(None, os.environ.get(PRELOAD, "").split(",")):
    importlib.import_module(_name).install()
