"""Checks of a dataset folder that need no sample: run.json, manifest, prompts, file names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.dataset._files import digest
from harness.dataset._prompt_builder import PromptBuilder
from harness.dataset.arrow import ARROW_FOLDER, folder_checksums, read_rows
from harness.dataset.manifest import MANIFEST, ManifestLine, ManifestText, read_manifest
from harness.dataset.prompt_set import PromptLimits, PromptSet, mask_digest
from harness.dataset.run_info import RUN_FILE, RunIdentity, read_run
from harness.errors import HarnessError
from harness.oracles.finding import Finding

_COUNTS = ("samples", "tokens", "bytes")
_SAMPLE_LIKE = re.compile(r"hs_.*\Z|.*\.safetensors(\..*)?\Z")
_ANY = PromptLimits(vocab_size=2**31 - 1, max_tokens=2**62)


@dataclass(frozen=True)
class FolderFacts:
    """What the folder says of itself, and what is wrong with that.

    Attributes:
        folder: The folder.
        lines: The manifest lines that name a sample to read, one an index.
        depths: Depth of each column; empty where ``run.json`` cannot be trusted.
        dtype: The dtype of every sample.
        hidden_size: Width of a row.
        prompts: The prompts from the Arrow folder; None where they cannot be read.
        bad: What is wrong.
    """

    folder: Path
    lines: tuple[ManifestLine, ...]
    depths: tuple[int, ...]
    dtype: str
    hidden_size: int | None
    prompts: PromptSet | None
    bad: tuple[Finding, ...]


def inspect(folder: Path) -> FolderFacts:
    """Read and cross-check everything but the samples."""
    bad: list[Finding] = []
    run = _run(folder, bad)
    text = _manifest(folder, bad)
    lines = {line.index: line for line in text.lines}
    bad += _names_once(text)
    if run:
        bad += _run_against_manifest(run, text, lines)
    prompts = _prompts(folder, lines, run, bad)
    if prompts is not None:
        bad += _prompts_against_lines(prompts, lines)
    bad += _strays(folder, lines)
    identity: Mapping[str, Any] = run.get("identity", {})
    return FolderFacts(
        folder,
        tuple(lines.values()),
        tuple(identity.get("depths", ())),
        str(identity.get("dtype", "")),
        run.get("hidden_size"),
        prompts,
        tuple(bad),
    )


def _run(folder: Path, bad: list[Finding]) -> dict[str, Any]:
    try:
        run = read_run(folder)
        identity = dict(run["identity"])
        for name in ("depths", "patches"):
            identity[name] = tuple(identity[name])
        told = RunIdentity(**identity)
        copies = {
            "fingerprint": (told.fingerprint, run["fingerprint"]),
            "columns": (len(told.depths), run["columns"]),
            "dtype": (told.dtype, run["dtype"]),
            "layout": (told.layout, run["layout"]),
            "capture": (told.capture, run["capture"]),
            "model": (told.model, run["model"]["fingerprint"]),
            "prompts": (told.prompts, run["prompts"]["fingerprint"]),
            "depths of the layer plan": (
                list(told.depths),
                run["layers"].get("depths", list(told.depths)),
            ),
        }
        numbers = [run["hidden_size"]]
        numbers += [run["prompts"][name] for name in ("count", "tokens")]
        numbers += [run["counts"][name] for name in _COUNTS]
        if not all(type(number) is int for number in numbers):
            raise ValueError(f"counts or sizes that are no numbers: {numbers}")
        if missing := {"state", "manifest"} - run.keys():
            raise ValueError(f"no field {', '.join(sorted(missing))}")
        if not isinstance(run["arrow"], dict | None):
            raise ValueError(f"arrow {run['arrow']!r}")
        if told.dtype not in ("float32", "bfloat16", "float16"):
            raise ValueError(f"dtype {told.dtype!r}")
    except FileNotFoundError:
        bad.append(Finding(RUN_FILE, "run", "the file run.json", "no such file"))
        return {}
    except KeyError as error:
        bad.append(Finding(RUN_FILE, "run", "run.json as it was written", f"no field {error}"))
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        bad.append(Finding(RUN_FILE, "run", "run.json as it was written", str(error)))
        return {}
    for name, (expected, found) in copies.items():
        if expected != found:
            bad.append(Finding(RUN_FILE, "run", f"{name} {expected}", str(found)))
    return run


def _manifest(folder: Path, bad: list[Finding]) -> ManifestText:
    try:
        text = read_manifest(folder)
    except OSError as error:
        bad.append(Finding(MANIFEST, "manifest", "a readable manifest", str(error)))
        return ManifestText((), (), b"")
    for number, reason in text.broken:
        bad.append(Finding(MANIFEST, "manifest-line", f"line {number} of one sample", reason))
    return text


def _names_once(text: ManifestText) -> Iterator[Finding]:
    for field in ("index", "id"):
        seen: set[Any] = set()
        for line in text.lines:
            value = getattr(line, field)
            if value in seen:
                yield Finding(line.id, "manifest-line", f"each {field} once", f"{value} twice")
            seen.add(value)


def _run_against_manifest(
    run: Mapping[str, Any], text: ManifestText, lines: Mapping[int, ManifestLine]
) -> Iterator[Finding]:
    count = run["prompts"]["count"]
    # Not a list of all: a count may be anything.
    absent = next((index for index in range(count) if index not in lines), None)
    if run["state"] != "complete" or absent is not None:
        reason = f" ({run['reason']})" if run.get("reason") else ""
        found = f"{run['state']}{reason}, {len(lines)} samples"
        first = "" if absent is None else f", first missing index {absent}"
        yield Finding(RUN_FILE, "complete", f"complete, {count} samples", found + first)
    for index, line in lines.items():
        if index >= count:
            yield Finding(line.id, "extra", f"an index below {count}", str(index))
    if run["manifest"] is None and run["state"] != "complete":
        return  # A session that did not end knows neither its manifest nor its counts.
    if digest(text.data) != run["manifest"]:
        yield Finding(MANIFEST, "manifest-checksum", str(run["manifest"]), digest(text.data))
    yield from _counts(run, lines)


def _counts(run: Mapping[str, Any], lines: Mapping[int, ManifestLine]) -> Iterator[Finding]:
    listed = {
        "samples": len(lines),
        "tokens": sum(line.tokens for line in lines.values()),
        "bytes": sum(line.bytes for line in lines.values()),
    }
    for name in _COUNTS:
        if run["counts"][name] != listed[name]:
            expected = f"{listed[name]} {name}, as in the manifest"
            yield Finding(RUN_FILE, "counts", expected, str(run["counts"][name]))


def _prompts(
    folder: Path,
    lines: Mapping[int, ManifestLine],
    run: Mapping[str, Any],
    bad: list[Finding],
) -> PromptSet | None:
    """Read the Arrow folder with the manifest's names: the prompts as the run had them."""
    path = folder / ARROW_FOLDER
    builder = PromptBuilder(_ANY)
    try:
        if run:
            bad += _arrow_checksums(run["arrow"] or {}, folder_checksums(path))
        for row in read_rows(path):
            line = lines.get(row.index)
            if row.seq_len != row.input_ids.size:
                bad.append(
                    Finding(
                        _name(line, row.index), "seq-len", str(row.input_ids.size), str(row.seq_len)
                    )
                )
            mask = row.loss_mask
            if line is not None and line.loss_mask is None and mask is not None and mask.all():
                mask = None
            builder.add(f"row {row.index}", _name(line, row.index), row.input_ids, mask)
        prompts = builder.build(kind="arrow", path=path)
    except HarnessError as error:
        failure = error.failure
        bad.append(
            Finding(ARROW_FOLDER, "arrow", failure.expected, f"{failure.found} ({failure.where})")
        )
        return None
    except OSError as error:
        bad.append(Finding(ARROW_FOLDER, "arrow", "a readable dataset folder", str(error)))
        return None
    if run:
        bad += _prompts_against_run(prompts, len(lines), run)
    return prompts


def _arrow_checksums(wanted: Mapping[str, str], found: Mapping[str, str]) -> Iterator[Finding]:
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            yield Finding(
                f"{ARROW_FOLDER}/{name}",
                "arrow-checksum",
                wanted.get(name, "no such file"),
                found.get(name, "no such file"),
            )


def _prompts_against_run(
    prompts: PromptSet, listed: int, run: Mapping[str, Any]
) -> Iterator[Finding]:
    count = run["prompts"]["count"]
    if len(prompts) != count:
        yield Finding(ARROW_FOLDER, "arrow", f"{count} rows", f"{len(prompts)} rows")
    elif listed == count and prompts.fingerprint != run["prompts"]["fingerprint"]:
        # Its names and absent masks come from the manifest, so all lines must be there.
        expected = run["prompts"]["fingerprint"]
        yield Finding(ARROW_FOLDER, "prompts-fingerprint", expected, prompts.fingerprint)
    if run["prompts"]["tokens"] != prompts.tokens:
        expected = f"{prompts.tokens} prompt tokens, as in {ARROW_FOLDER}"
        yield Finding(RUN_FILE, "counts", expected, str(run["prompts"]["tokens"]))


def _prompts_against_lines(
    prompts: PromptSet, lines: Mapping[int, ManifestLine]
) -> Iterator[Finding]:
    for index, line in lines.items():
        if index >= len(prompts):
            continue  # the number of rows is its own finding
        mask = mask_digest(prompts[index].loss_mask)
        if mask != line.loss_mask:
            yield Finding(line.id, "loss-mask", str(line.loss_mask), f"{mask} in its Arrow row")


def _strays(folder: Path, lines: Mapping[int, ManifestLine]) -> Iterator[Finding]:
    known: Sequence[str] = [line.file for line in lines.values()]
    for name in sorted({entry.name for entry in folder.iterdir()} - set(known)):
        if _SAMPLE_LIKE.match(name):
            yield Finding(name, "extra", "only samples that the manifest lists", "an unlisted file")


def _name(line: ManifestLine | None, index: int) -> str:
    return f"index {index}, not listed" if line is None else line.id
