"""The reference child: HF transformers forwards in float32. ``python -m harness.inside.reference``.

One prompt at a time, on CPU, one fixed number of threads: nothing about another prompt or
the batch can change a bit of the result. Depth k is what HF reports as ``hidden_states[k]``
for k < L. HF's own last entry is taken after the final norm, so depth L comes from a
forward pre-hook on that norm, and each forward asserts that the two agree through the norm.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.inside.hfmodel import TextModel, load_text_model
from harness.inside.routing import RoutingGap
from harness.inside.wire import Emit, OpError, serve

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Forward:
    """Reference forwards of one loaded model."""

    def __init__(self, model: TextModel) -> None:
        self._model = model
        self._routing = RoutingGap(model.module)

    @property
    def moe_layers(self) -> tuple[int, ...]:
        """Decoder layers (0-based) that route to experts: the columns of ``routing_gap``."""
        return self._routing.layers

    def __call__(self, input_ids: Sequence[int]) -> dict[str, Any]:
        """Run one prompt.

        Args:
            input_ids: Token ids, at least one, all in the vocabulary.

        Returns:
            ``hidden_states`` float32 ``[tokens, L + 1, hidden]``, ``routing_gap`` float32
            ``[tokens, moe_layers]``, ``logprobs`` float64 ``[tokens - 1]`` of each next prompt
            token, ``token_ids`` int64 ``[tokens]``.

        Raises:
            OpError: ``reference.prompt`` or ``reference.final-norm``.
        """
        import torch

        self._check(input_ids)
        model = self._model.module
        before_norm: list[torch.Tensor] = []
        hook = model.model.norm.register_forward_pre_hook(
            lambda _module, args: before_norm.append(args[0])
        )
        ids = torch.tensor([list(input_ids)], dtype=torch.int64)
        try:
            with torch.inference_mode(), self._routing.recording() as gaps:
                output = model.model(input_ids=ids, use_cache=False, output_hidden_states=True)
        finally:
            hook.remove()
        with torch.inference_mode():
            (last,) = before_norm
            normed = model.model.norm(last)
            if not torch.equal(normed, output.hidden_states[-1]):
                raise OpError(
                    "reference.final-norm",
                    expected="HF's last hidden state == final norm of depth L",
                    found="another value",
                    where=f"{type(model).__name__} of this transformers release",
                    next="report it: the reference no longer knows what depth L is",
                )
            depths = [*output.hidden_states[: self._model.num_layers], last]
            logits = model.lm_head(normed)[0, :-1]
            scores = logits.to(torch.float64).log_softmax(-1)
            logprobs = scores.gather(-1, ids[0, 1:, None])[:, 0]
            return {
                "hidden_states": torch.stack([d[0].to(torch.float32) for d in depths], dim=1),
                "routing_gap": gaps.stack(len(input_ids)),
                "logprobs": logprobs,
                "token_ids": ids[0].clone(),
            }

    def _check(self, input_ids: Sequence[int]) -> None:
        vocab = self._model.vocab_size
        outside = [token for token in input_ids if not 0 <= token < vocab]
        if not input_ids or outside:
            raise OpError(
                "reference.prompt",
                expected=f"one token id or more, each from 0 to {vocab - 1}",
                found=f"ids {outside[:5]}" if outside else "an empty prompt",
                where="reference forward",
                next="check the prompts",
            )


class ReferenceOps:
    """The ops of this child; holds the model between them."""

    def __init__(self) -> None:
        self._forward: Forward | None = None

    def load(self, params: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Load the reference model.

        Params:
            model: Folder of the checkpoint.
            dtype: ``float32`` unless given.
            threads: Threads of the forward; 1 unless given. Another number may change bits.
        """
        started = time.monotonic()
        # Before any heavy import: a folder that cannot serve is refused in milliseconds.
        model = load_text_model(Path(params["model"]), str(params.get("dtype", "float32")))
        import torch
        import transformers

        torch.set_num_threads(int(params.get("threads", 1)))
        torch.use_deterministic_algorithms(True)
        # Debugging aid of the same switch: filling every new buffer costs a quarter of the time.
        torch.utils.deterministic.fill_uninitialized_memory = False
        self._forward = Forward(model)
        return {
            "architecture": type(model.module).__name__,
            "wrapped": model.wrapped,
            "num_layers": model.num_layers,
            "moe_layers": list(self._forward.moe_layers),
            "seconds": time.monotonic() - started,
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        }

    def hidden_states(self, params: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Write ``ref_<key>.safetensors`` for every sample; event ``reference`` for each.

        Params:
            samples: List of ``{key, input_ids}``; a key is a plain file-name part.
            out: Folder of the files; made when missing.
        """
        if self._forward is None:
            raise OpError(
                "reference.not-loaded",
                expected="op load before op hidden_states",
                found="no model",
                where="reference child",
                next="call load first",
            )
        from safetensors.torch import save_file

        out = Path(params["out"])
        out.mkdir(parents=True, exist_ok=True)
        metadata = {"moe_layers": ",".join(str(layer) for layer in self._forward.moe_layers)}
        started = time.monotonic()
        tokens = 0
        for sample in params["samples"]:
            key = str(sample["key"])
            if not _KEY.fullmatch(key):
                raise OpError(
                    "reference.key",
                    expected="letters, digits, dot, dash and underscore",
                    found=repr(key),
                    where="op hidden_states",
                    next="name the sample by its index",
                )
            tensors = self._forward(sample["input_ids"])
            file = out / f"ref_{key}.safetensors"
            part = file.with_name(f".{file.name}.{os.getpid()}.part")
            try:
                save_file(tensors, part, metadata=metadata)
                part.replace(file)
            finally:
                part.unlink(missing_ok=True)
            tokens += len(sample["input_ids"])
            emit("reference", key=key, file=str(file), tokens=len(sample["input_ids"]))
        return {
            "samples": len(params["samples"]),
            "tokens": tokens,
            "seconds": time.monotonic() - started,
        }


def main() -> None:
    """Serve the ops until the parent hangs up."""
    ops = ReferenceOps()
    serve({"load": ops.load, "hidden_states": ops.hidden_states})


if __name__ == "__main__":
    main()
