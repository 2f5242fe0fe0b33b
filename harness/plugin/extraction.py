"""The canned prompts through the session's engine into a dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import overload

from harness.data import data_path
from harness.dataset.manifest import ManifestLine, read_manifest
from harness.errors import UsageError
from harness.extraction import ExtractOptions, ExtractPlan, ExtractResult, make_plan
from harness.plugin.engine import Engine
from harness.plugin.sample import Sample, read

CANNED_PROMPTS = "prompts/mixed.jsonl"


class Samples(Sequence[Sample]):
    """The samples of a dataset in prompt order; each is read when it is asked for."""

    def __init__(self, out: Path, lines: Sequence[ManifestLine], depths: tuple[int, ...]) -> None:
        self._out, self._lines, self._depths = out, tuple(lines), depths
        self._places = {line.id: place for place, line in enumerate(lines)}

    @property
    def ids(self) -> tuple[str, ...]:
        """Names of the prompts, in order."""
        return tuple(self._places)

    def named(self, id: str) -> Sample:
        """Return the sample of one prompt.

        Raises:
            UsageError: ``extraction.no-such-prompt``.
        """
        if id not in self._places:
            raise UsageError(
                "extraction.no-such-prompt",
                expected="one of " + ", ".join(self._places),
                found=id,
                where=str(self._out),
                next="look at `extraction.samples.ids`",
            )
        return self[self._places[id]]

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[Sample]:
        return map(self._read, self._lines)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        if isinstance(index, slice):
            return [self._read(line) for line in self._lines[index]]
        return self._read(self._lines[index])

    def _read(self, line: ManifestLine) -> Sample:
        return read(self._out / line.file, id=line.id, depths=self._depths)


@dataclass(frozen=True)
class Extraction:
    """What the ``extraction`` fixture made.

    Attributes:
        out: The dataset's folder, as ``harness extract`` leaves it; ``harness verify`` takes it.
        plan: What was decided before: prompts, layers, identity of the run.
        result: What was done: samples, tokens, seconds, tokens per second.
        manifest: One line a sample, in prompt order.
    """

    out: Path
    plan: ExtractPlan
    result: ExtractResult
    manifest: tuple[ManifestLine, ...]

    @property
    def samples(self) -> Samples:
        """The samples, in prompt order."""
        return Samples(self.out, self.manifest, self.plan.info.identity.depths)


def run_extraction(engine: Engine, prompts: Path | None, out: Path) -> Extraction:
    """Send prompts through a loaded engine into a dataset folder.

    The same checks and the same folder as :func:`harness.extraction.extract`, which loads an
    engine of its own. A folder that holds this very run already is taken up where it ended.

    Args:
        engine: The engine.
        prompts: JSONL with token ids, or a dataset folder; by default the canned prompts.
        out: The folder.

    Raises:
        HarnessError: As :mod:`harness.errors` sorts them.
    """
    source = data_path(CANNED_PROMPTS) if prompts is None else prompts
    options = ExtractOptions(engine=engine.plan.options, prompts=source, out=out)
    plan = replace(make_plan(options), engine=engine.plan)
    result = engine.extract(plan)
    manifest = sorted(read_manifest(result.out).lines, key=lambda line: line.index)
    return Extraction(result.out, plan, result, tuple(manifest))
