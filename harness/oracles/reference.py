"""Reference hidden states from HF transformers, made in a child and read as numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.errors import CheckFailed
from harness.host import Host, HostSpec
from harness.host.usage import usage_errors
from harness.oracles import parity

_TENSORS = ("hidden_states", "routing_gap", "logprobs", "token_ids")


@dataclass(frozen=True, eq=False)
class Reference:
    """The reference forward of one prompt.

    Attributes:
        key: Name of the prompt.
        file: Where it was read from.
        token_ids: int64 ``[tokens]``.
        hidden_states: float32 ``[tokens, L + 1, hidden]``; column k is depth k, and column L
            is taken before the final norm.
        routing_gap: float32 ``[tokens, moe_layers]``: by how much the choice of experts was made.
        logprobs: float64 ``[tokens - 1]``: natural log of the probability of each next token.
        moe_layers: Decoder layer (0-based) of each column of ``routing_gap``.
    """

    key: str
    file: Path
    token_ids: npt.NDArray[np.int64]
    hidden_states: npt.NDArray[np.float32]
    routing_gap: npt.NDArray[np.float32]
    logprobs: npt.NDArray[np.float64]
    moe_layers: tuple[int, ...]

    @property
    def num_layers(self) -> int:
        """Decoder layers, L."""
        return int(self.hidden_states.shape[1]) - 1

    def compare(
        self,
        got: npt.NDArray[np.floating[Any]],
        depths: Sequence[int],
        *,
        others: Mapping[str, Reference] | None = None,
        limits: parity.Limits | None = None,
    ) -> parity.ParityReport:
        """Compare captured rows ``[tokens, columns, hidden]`` of this prompt; see parity."""
        return parity.compare(
            got,
            self.hidden_states,
            depths,
            self.routing_gap,
            prompt=self.key,
            others={key: other.hidden_states for key, other in (others or {}).items()},
            limits=limits,
        )


def read_reference(file: Path) -> Reference:
    """Read one ``ref_<key>.safetensors``.

    Raises:
        CheckFailed: ``reference.broken-file`` when it is missing, torn or of another layout.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as content:
            metadata = content.metadata() or {}
            arrays = {name: content.get_tensor(name) for name in _TENSORS}
    except (OSError, SafetensorError) as error:
        raise CheckFailed(
            "reference.broken-file",
            expected=f"a safetensors file with {', '.join(_TENSORS)}",
            found=f"{type(error).__name__}: {error}",
            where=str(file),
            next="compute the reference anew",
        ) from error
    layers = metadata.get("moe_layers", "")
    return Reference(
        key=file.stem.removeprefix("ref_"),
        file=file,
        moe_layers=tuple(int(layer) for layer in layers.split(",") if layer),
        **arrays,
    )


class ReferenceHost:
    """A child with the reference model in it; a context manager.

    Args:
        model: Checkpoint folder, plain or wrapper, in floating point. The reference of an
            INT4 checkpoint is its dequantised twin.
        python: Interpreter that has torch and transformers.
        out: Folder for the files; made when missing.
        log: File for what the child prints; ``reference.log`` in ``out`` when left out.
        dtype: Type of the forward.
        threads: Threads of the forward. One is slow and gives the same bits everywhere.
        load_deadline_s: Seconds for importing transformers and loading the model.
    """

    def __init__(
        self,
        model: Path,
        python: Path,
        out: Path,
        *,
        log: Path | None = None,
        dtype: str = "float32",
        threads: int = 1,
        load_deadline_s: float = 600.0,
    ) -> None:
        self._out = out.absolute()
        self._params = {"model": str(model.absolute()), "dtype": dtype, "threads": threads}
        self._load_deadline_s = load_deadline_s
        self._host = Host(
            HostSpec(
                python=python,
                module="harness.inside.reference",
                # The reference is computed on CPU, beside an engine that owns the devices.
                env={"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"},
                log=log or self._out / "reference.log",
            )
        )
        self.info: dict[str, Any] = {}

    def __enter__(self) -> ReferenceHost:
        self._out.mkdir(parents=True, exist_ok=True)
        self._host.start()
        try:
            with usage_errors("reference.", "model."):
                self.info = self._host.call("load", self._params, deadline_s=self._load_deadline_s)
        except BaseException:
            self._host.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._host.__exit__(kind, value, trace)

    def compute(
        self, prompts: Mapping[str, Sequence[int]], *, deadline_s: float | None = None
    ) -> dict[str, Reference]:
        """Run prompts through the reference.

        Args:
            prompts: Name -> token ids. A name becomes part of a file name.
            deadline_s: Seconds for all of them; one minute and 50 ms a token when left out.

        Returns:
            Name -> reference, in the order given.

        Raises:
            UsageError: ``reference.prompt`` or ``reference.key``.
            EngineFailed: The child died, hung or failed.
        """
        tokens = sum(len(ids) for ids in prompts.values())
        files: dict[str, Path] = {}
        with usage_errors("reference."):
            self._host.call(
                "hidden_states",
                {
                    "samples": [
                        {"key": key, "input_ids": [int(token) for token in ids]}
                        for key, ids in prompts.items()
                    ],
                    "out": str(self._out),
                },
                deadline_s=60.0 + 0.05 * tokens if deadline_s is None else deadline_s,
                on_event=lambda event: files.update({event["key"]: Path(event["file"])}),
            )
        return {key: read_reference(files[key]) for key in prompts}
