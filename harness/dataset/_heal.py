"""Bring an output folder back to a state where the manifest tells the truth."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.dataset._files import atomic_write, file_checksum
from harness.dataset.manifest import (
    MANIFEST,
    ManifestLine,
    parse_line,
    read_manifest,
    sample_name,
)
from harness.dataset.prompt_set import PromptSet, mask_digest

INTENT = ".publishing"
SPOOL = ".spool"
_SAMPLE = re.compile(r"hs_\d+\.safetensors(\.lock)?\Z")

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Healed:
    """What a resume found and did.

    Attributes:
        whole: Index to manifest line of every sample that is kept.
        adopted: Samples that were published but not yet listed.
        dropped: ``(file, reason)`` of samples that were removed and will be made again.
        torn: Manifest lines that could not be read.
    """

    whole: dict[int, ManifestLine]
    adopted: tuple[int, ...]
    dropped: tuple[tuple[str, str], ...]
    torn: int


def heal(folder: Path, prompts: PromptSet, dtype: str, progress: Progress | None) -> Healed:
    """Keep each sample whose checksum holds, remove the rest, and rewrite the manifest.

    Only called with the folder's lock held and its run's identity known to be ours, so every
    sample in it is ours to remove. Nothing else in the folder is touched, except the spool,
    whose files were never accepted by a parent and are made again.

    Args:
        folder: The output folder.
        prompts: The prompts of the run.
        dtype: The dtype of the run.
        progress: Called with ``(checked, total)`` samples.

    Raises:
        OSError: The folder cannot be read or written.
    """
    text = read_manifest(folder)
    intent = _intent(folder)
    claims = {line.index: line for line in text.lines}
    if intent is not None:
        # The manifest's own line wins: an intent is older news once its line is there.
        claims.setdefault(intent.index, intent)
    whole: dict[int, ManifestLine] = {}
    dropped: list[tuple[str, str]] = []
    for number, line in enumerate(claims.values(), start=1):
        reason = _fault(folder, line, prompts, dtype)
        if reason is None:
            whole[line.index] = line
        elif line is not intent or (folder / line.file).exists():
            dropped.append((line.file, reason))
        if progress is not None:
            progress(number, len(claims))
    for path in _strays(folder, whole):
        if path.name not in {file for file, _ in dropped}:
            dropped.append((path.name, "no manifest line"))
        path.unlink()
    _empty_spool(folder / SPOOL)
    if list(whole.values()) != list(text.lines) or text.broken:
        atomic_write(folder / MANIFEST, b"".join(line.encode() for line in whole.values()))
    (folder / INTENT).unlink(missing_ok=True)
    listed = {line.index for line in text.lines}
    adopted = tuple(index for index in whole if index not in listed)
    return Healed(whole, adopted, tuple(dropped), len(text.broken))


def line_for(
    prompts: PromptSet, index: int, *, checksum: str, bytes: int, dtype: str
) -> ManifestLine:
    """Return the manifest line that a prompt's sample must have."""
    prompt = prompts[index]
    return ManifestLine(
        id=prompt.id,
        index=index,
        file=sample_name(index),
        tokens=prompt.tokens,
        checksum=checksum,
        bytes=bytes,
        loss_mask=mask_digest(prompt.loss_mask),
        dtype=dtype,
    )


def _fault(folder: Path, line: ManifestLine, prompts: PromptSet, dtype: str) -> str | None:
    if line.index >= len(prompts):
        return f"index {line.index} of {len(prompts)} prompts"
    wanted = line_for(prompts, line.index, checksum=line.checksum, bytes=line.bytes, dtype=dtype)
    if line != wanted:
        return "its manifest line does not fit its prompt"
    path = folder / line.file
    if path.is_symlink():
        return "a link, not a file of its own"
    try:
        if path.stat().st_size != line.bytes:
            return f"{path.stat().st_size} bytes instead of {line.bytes}"
        return None if file_checksum(path) == line.checksum else "its checksum does not hold"
    except FileNotFoundError:
        return "the file is gone"


def _intent(folder: Path) -> ManifestLine | None:
    try:
        return parse_line((folder / INTENT).read_bytes().removesuffix(b"\n"))
    except (FileNotFoundError, ValueError):
        # Torn: then the rename that follows it had not begun either.
        return None


def _strays(folder: Path, whole: dict[int, ManifestLine]) -> Iterator[Path]:
    kept = {line.file for line in whole.values()}
    for path in sorted(folder.iterdir()):
        if _SAMPLE.match(path.name) and path.name not in kept:
            yield path


def _empty_spool(spool: Path) -> None:
    spool.mkdir(exist_ok=True)
    for path in spool.iterdir():
        if not path.is_dir() or path.is_symlink():
            path.unlink()
