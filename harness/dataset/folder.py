"""The output folder of a run: open or resume, publish samples one by one, finish.

What is in it: ``hs_<i>.safetensors`` (one a prompt), ``manifest.jsonl``, ``run.json``,
``prompts_arrow/`` (the prompts as the trainer reads them), and while a run goes on ``.spool/``
(where the engine writes), ``.lock`` and ``.publishing``.

Durability. A sample appears under its final name by rename, whole; its manifest line follows
at once and is flushed to the kernel, so the end of a process, however sudden, loses nothing.
The manifest and the folder are synced to the disk every few seconds and at the end, the
samples' bytes by the spool writer's policy; what a power cut takes is found by its checksum
and made again.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from harness.dataset._append import AppendFile
from harness.dataset._files import atomic_write, disk_error, sync_folder
from harness.dataset._gate import admit
from harness.dataset._heal import INTENT, SPOOL, Healed, Progress, heal, line_for
from harness.dataset._lock import FolderLock
from harness.dataset._place import make_folder, move, prompts_beside, undo_folder
from harness.dataset._run_file import RunFile
from harness.dataset.manifest import MANIFEST, ManifestLine
from harness.dataset.prompt_set import PromptSet
from harness.dataset.run_info import RunInfo
from harness.errors import CheckFailed, HarnessError

_SYNC_S = 5.0
_REASON = 300


__all__ = ["OutputFolder", "admit"]


class OutputFolder:
    """An output folder that this process holds the lock of. Use it from one thread.

    Attributes:
        path: The folder.
        spool: Where the engine writes its files, on the same file system.
        healed: What a resume found; its ``whole`` is empty for a new folder.
    """

    def __init__(
        self,
        path: Path,
        info: RunInfo,
        prompts: PromptSet,
        *,
        lock: FolderLock,
        healed: Healed,
        run: RunFile,
    ) -> None:
        """Use :meth:`open`."""
        self.path = path
        self.spool = path / SPOOL
        self.healed = healed
        self._info = info
        self._prompts = prompts
        self._lock = lock
        self._run = run
        self._lines = dict(healed.whole)
        self._opened = self._synced = time.monotonic()
        self._finished = False
        self._manifest = AppendFile(path / MANIFEST)
        try:
            self._intent = AppendFile(path / INTENT)
        except OSError:
            self._manifest.close()
            raise

    @classmethod
    def open(
        cls,
        path: Path | str,
        info: RunInfo,
        prompts: PromptSet,
        *,
        progress: Progress | None = None,
    ) -> OutputFolder:
        """Create the folder, or resume the same run in it.

        A missing or empty folder becomes a new run. A folder of the same run (equal
        fingerprint) is resumed: samples whose checksum holds are kept, the rest is removed.

        Args:
            path: The folder.
            info: The run.
            prompts: Its prompts, in order; their Arrow folder is written beside.
            progress: Called with ``(checked, total)`` while a resume checks its samples.

        Raises:
            Refused: ``dataset.other-run`` (names each field that differs),
                ``dataset.foreign-folder``, ``dataset.not-a-folder``, ``dataset.run-unreadable``,
                ``dataset.locked``, ``dataset.disk-full``, ``dataset.read-only``,
                ``dataset.io-error``. A folder that this call made is gone then.
        """
        folder = Path(path).absolute()
        admit(folder, info.identity)
        made = make_folder(folder)
        lock: FolderLock | None = None
        try:
            lock = FolderLock(folder)
            # Another run may have begun between the first look and the lock.
            admit(folder, info.identity)
            healed = heal(folder, prompts, info.identity.dtype, progress)
            run = _begin(folder, info, prompts, healed)
            return cls(folder, info, prompts, lock=lock, healed=healed, run=run)
        except BaseException as error:
            undo_folder(folder, made=made, lock=lock)
            if isinstance(error, OSError):
                raise disk_error(error, folder, started=False) from error
            raise

    @property
    def whole(self) -> Mapping[int, ManifestLine]:
        """Index to manifest line of every sample that is there."""
        return self._lines

    @property
    def missing(self) -> list[int]:
        """Indices that still have to be made, ascending."""
        return [index for index in range(len(self._prompts)) if index not in self._lines]

    def record(
        self, *, versions: Mapping[str, str] | None = None, engine: Mapping[str, Any] | None = None
    ) -> None:
        """Take in what is known only once the engine runs; :meth:`finish` writes it."""
        self._info = replace(
            self._info,
            versions=dict(versions if versions is not None else self._info.versions),
            engine=dict(engine if engine is not None else self._info.engine),
        )

    def publish(self, spool_file: Path, index: int, *, checksum: str, bytes: int) -> ManifestLine:
        """Give a finished spool file its final name and list it in the manifest.

        Args:
            spool_file: The file the engine wrote. One on another file system is copied.
            index: The prompt's index.
            checksum: ``blake3:<hex>`` as computed while it was written.
            bytes: Its size as written.

        Returns:
            The manifest line.

        Raises:
            CheckFailed: ``dataset.short-sample`` (the file is not as long as its writer said),
                ``dataset.published-twice``, or a disk error. Nothing of this sample is left
                under a final name then, and the spool file is where it was.
        """
        line = line_for(
            self._prompts,
            index,
            checksum=checksum,
            bytes=bytes,
            dtype=self._info.identity.dtype,
        )
        self._refuse(spool_file, line)
        final = self.path / line.file
        try:
            # The intent stands before the rename, so a crash after it can be healed.
            self._intent.replace_content(line.encode())
            move(spool_file, final)
            try:
                self._manifest.append(line.encode())
            except OSError:
                move(final, spool_file)
                raise
            self._lines[index] = line
            self._sync_now_and_then()
        except OSError as error:
            raise disk_error(error, final, started=True) from error
        return line

    def finish(self, *, seconds: float, state: str | None = None) -> dict[str, Any]:
        """Sync everything and write ``run.json`` for good.

        Args:
            seconds: How long this session took.
            state: ``complete`` or ``incomplete``; by default what the manifest says.

        Returns:
            The content of ``run.json``.

        Raises:
            CheckFailed: ``dataset.incomplete`` where ``complete`` was claimed with samples
                missing, or a disk error.
        """
        actual = "incomplete" if self.missing else "complete"
        if state == "complete" and actual != state:
            raise CheckFailed(
                "dataset.incomplete",
                expected=f"{len(self._prompts)} samples",
                found=f"{len(self._lines)}",
                where=str(self.path),
                next="run the same command again; what is there is kept",
            )
        try:
            self._manifest.sync()
            sync_folder(self.path)
            if actual == "complete":
                self._sort_manifest()
            body = self._run.write(self._info, state or actual, self._lines, seconds=seconds)
            if actual == "complete":
                (self.path / INTENT).unlink(missing_ok=True)
                shutil.rmtree(self.spool, ignore_errors=True)
        except OSError as error:
            raise disk_error(error, self.path, started=True) from error
        self._finished = True
        return body

    def _leave(self, error: BaseException) -> None:
        """Write into ``run.json`` how this session ended early; only SIGKILL leaves it open."""
        state = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        # A disk that fails now has most likely failed before: the first error counts.
        with contextlib.suppress(OSError):
            self._manifest.sync()
            sync_folder(self.path)
            seconds = time.monotonic() - self._opened
            self._run.write(self._info, state, self._lines, seconds=seconds, reason=_reason(error))

    def _sort_manifest(self) -> None:
        # Samples arrive in any order; sorted, equal datasets have equal manifests.
        self._lines = dict(sorted(self._lines.items()))
        text = b"".join(line.encode() for line in self._lines.values())
        atomic_write(self.path / MANIFEST, text)

    def close(self) -> None:
        """Close the files and give the lock back; a second call does nothing."""
        self._manifest.close()
        self._intent.close()
        self._lock.release()

    def __enter__(self) -> OutputFolder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is not None and not self._finished:
                self._leave(error)
        finally:
            self.close()

    def _refuse(self, spool_file: Path, line: ManifestLine) -> None:
        if line.index in self._lines:
            raise CheckFailed(
                "dataset.published-twice",
                expected=f"sample {line.index} once",
                found="a second file for it",
                where=str(spool_file),
                next="report this: two results came for one prompt",
            )
        try:
            size = spool_file.stat().st_size
        except OSError as error:
            raise disk_error(error, spool_file, started=True) from error
        if size != line.bytes:
            raise CheckFailed(
                "dataset.short-sample",
                expected=f"{line.bytes} bytes, as its writer reported",
                found=f"{size} bytes",
                where=str(spool_file),
                next="check the disk, then run the same command again",
            )

    def _sync_now_and_then(self) -> None:
        if time.monotonic() - self._synced >= _SYNC_S:
            self._manifest.sync()
            sync_folder(self.path)
            self._synced = time.monotonic()


def _reason(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "ended by the user or by a signal"
    if isinstance(error, HarnessError):
        return f"{error.failure.id}: {error.failure.found}"[:_REASON]
    return f"{type(error).__name__}: {error}".rstrip(": ")[:_REASON]


def _begin(folder: Path, info: RunInfo, prompts: PromptSet, healed: Healed) -> RunFile:
    run = RunFile(folder, prompts)
    run.write(info, "started", healed.whole)
    # After run.json: from then on the folder is known as this run's.
    run.arrow = prompts_beside(folder, prompts, run.arrow)
    run.write(info, "started", healed.whole)
    return run
