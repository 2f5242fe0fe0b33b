"""``harness verify``: is this folder, bit for bit and sample for sample, what its run made?

Each sample file is read once; its checksum, header and content are judged on the same bytes.
Any single flipped bit in a sample, the manifest, ``run.json`` or the Arrow folder is found:
samples by the manifest's checksums, the manifest and the Arrow files by those in ``run.json``,
and ``run.json`` by its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.dataset._verify_folder import FolderFacts, inspect
from harness.dataset.manifest import ManifestLine
from harness.dataset.samples import Sample, read_sample
from harness.errors import CheckFailed, UsageError
from harness.oracles.content import check_sample
from harness.oracles.cross_sample import CrossSample
from harness.oracles.finding import Finding

Bad = Finding
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class VerifyReport:
    """What ``harness verify`` found.

    Attributes:
        out: The folder.
        checked: Samples that were read.
        bad: Everything that is wrong, in the order run, manifest, prompts, samples.
    """

    out: Path
    checked: int
    bad: tuple[Bad, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.bad

    def to_json(self) -> dict[str, Any]:
        """Return ``out``, ``ok``, ``checked`` and ``bad`` as a JSON object."""
        return {
            "out": str(self.out),
            "ok": self.ok,
            "checked": self.checked,
            "bad": [bad.to_json() for bad in self.bad],
        }


def verify(out: Path | str, *, workers: int = 4, progress: Progress | None = None) -> VerifyReport:
    """Check a dataset folder in full.

    Args:
        out: The folder.
        workers: Samples in work at a time; this many plus one are in memory.
        progress: Called with ``(samples checked, samples)``.

    Returns:
        The report; faults of content are in it and are not raised.

    Raises:
        UsageError: ``verify.no-dataset``: the folder holds no run.
    """
    folder = Path(out)
    if not (folder / "run.json").is_file() and not (folder / "manifest.jsonl").is_file():
        raise UsageError(
            "verify.no-dataset",
            expected="the output folder of harness extract (with run.json and manifest.jsonl)",
            found="neither" if folder.is_dir() else "no such folder",
            where=str(folder),
            next="name the folder given to harness extract --out",
        )
    facts = inspect(folder)
    bad = list(facts.bad)
    cross = CrossSample()
    for done, (line, sample, findings) in enumerate(_checked(facts, workers), start=1):
        bad += findings
        if sample is not None and facts.depths and sample.hidden.shape[1] == len(facts.depths):
            cross.add(line.id, sample.hidden, sample.token_ids, depths=facts.depths)
        if progress is not None:
            progress(done, len(facts.lines))
    bad += cross.findings()
    return VerifyReport(folder, len(facts.lines), tuple(bad))


_Checked = tuple[ManifestLine, Sample | None, list[Bad]]


def _checked(facts: FolderFacts, workers: int) -> Iterator[_Checked]:
    """Check the samples in threads (reading, hashing and numpy all run in parallel), in order."""
    waiting: deque[Future[_Checked]] = deque()
    with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="hs-verify") as pool:
        for line in facts.lines:
            waiting.append(pool.submit(_check, facts, line))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _check(facts: FolderFacts, line: ManifestLine) -> _Checked:
    path = facts.folder / line.file
    if path.is_symlink():
        # What it points at may change or go, or lie where nobody copies it from.
        return line, None, [Bad(line.id, "link", "a regular file", f"a link to {path.readlink()}")]
    try:
        sample = read_sample(path, checksum=True)
    except CheckFailed as error:
        failure = error.failure
        check = failure.id.removeprefix("sample.")
        return line, None, [Bad(line.id, check, failure.expected, failure.found)]
    bad = list(_against_line(line, sample))
    if facts.depths:
        bad += check_sample(
            line.id,
            sample.hidden,
            sample.token_ids,
            expected_ids=_expected_ids(facts, line, sample),
            depths=facts.depths,
            dtype=facts.dtype,
            hidden_size=facts.hidden_size,
        )
    return line, sample, bad


def _against_line(line: ManifestLine, sample: Sample) -> Iterator[Bad]:
    wanted = (
        ("bytes", line.bytes, sample.bytes),
        ("checksum", line.checksum, sample.checksum),
        ("dtype", line.dtype, sample.dtype),
        ("tokens", line.tokens, sample.hidden.shape[0]),
    )
    for check, expected, found in wanted:
        if expected != found:
            yield Bad(line.id, check, str(expected), str(found))


def _expected_ids(facts: FolderFacts, line: ManifestLine, sample: Sample) -> Sequence[int]:
    if facts.prompts is None or line.index >= len(facts.prompts):
        ids: Sequence[int] = sample.token_ids.tolist()
        return ids
    return facts.prompts[line.index].token_list()
