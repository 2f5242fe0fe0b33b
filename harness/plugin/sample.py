"""One prompt's hidden states, as a test sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.dataset import samples
from harness.dataset.run_info import read_run
from harness.errors import UsageError


@dataclass(frozen=True)
class LogprobCheck:
    """How well depth L rebuilds the engine's own log-probabilities of the prompt.

    Attributes:
        max_err: Worst token, natural log.
        mean_err: Mean over the prompt, natural log.
    """

    max_err: float
    mean_err: float


@dataclass(frozen=True, eq=False)
class Sample:
    """Hidden states of one prompt.

    Attributes:
        id: Name of the prompt.
        token_ids: int64 ``[tokens]``, as they came back with the rows.
        dtype: How the values are stored: ``float32``, ``bfloat16`` or ``float16``.
        stored: The values as stored, ``[tokens, columns, hidden]``; bfloat16 as its bits in
            uint16. For sums and comparisons use ``hidden_states``.
        depths: Depth of each column; empty where the file's run is not known.
        logprobs: Result of the log-probability check, where one was asked for.
        path: The file, where it is still there.
    """

    id: str
    token_ids: npt.NDArray[np.int64]
    dtype: str
    stored: npt.NDArray[Any]
    depths: tuple[int, ...] = ()
    logprobs: LogprobCheck | None = None
    path: Path | None = None

    @cached_property
    def hidden_states(self) -> npt.NDArray[np.float32]:
        """float32 ``[tokens, columns, hidden]``; exact for every dtype a sample may have."""
        return self._file().to_float32()

    @property
    def tokens(self) -> int:
        """Number of rows."""
        return int(self.stored.shape[0])

    def at(self, depth: int) -> npt.NDArray[np.float32]:
        """Return the rows of one depth, float32 ``[tokens, hidden]``.

        Raises:
            UsageError: ``sample.no-such-depth``.
        """
        if depth not in self.depths:
            raise UsageError(
                "sample.no-such-depth",
                expected=f"one of the sample's depths {list(self.depths)}",
                found=str(depth),
                where=f"sample {self.id}",
                next="ask for this depth with --hs-layers, or read hidden_states by column",
            )
        return self.hidden_states[:, self.depths.index(depth)]

    def to_torch(self) -> Any:
        """Return ``stored`` as a torch tensor of its own dtype; torch is imported only here."""
        return self._file().to_torch()

    def _file(self) -> samples.Sample:
        return samples.Sample(
            path=self.path or Path(self.id),
            hidden=self.stored,
            dtype=self.dtype,
            token_ids=self.token_ids,
            bytes=0,
            checksum=None,
        )


def read(
    path: Path | str,
    *,
    id: str | None = None,
    depths: Sequence[int] | None = None,
    logprobs: LogprobCheck | None = None,
) -> Sample:
    """Read one sample file.

    Args:
        path: The file, such as ``OUT/hs_0.safetensors``.
        id: Its name; by default the file's name without its ending.
        depths: Depths of its columns; by default what ``run.json`` beside it says, if any.
        logprobs: Result of a check to keep with it.

    Raises:
        CheckFailed: ``sample.missing``, ``sample.unreadable`` or ``sample.broken``.
    """
    path = Path(path)
    file = samples.read_sample(path)
    if depths is None:
        depths = _depths_beside(path, columns=file.hidden.shape[1])
    return Sample(
        id=path.stem if id is None else id,
        token_ids=file.token_ids,
        dtype=file.dtype,
        stored=file.hidden,
        depths=tuple(depths),
        logprobs=logprobs,
        path=path,
    )


def _depths_beside(path: Path, *, columns: int) -> tuple[int, ...]:
    try:
        depths = tuple(read_run(path.parent)["identity"]["depths"])
    except (OSError, ValueError, KeyError, TypeError):
        return ()
    return depths if len(depths) == columns else ()
