"""stdout and stderr of a command, where one of them is full, closed, or read by nobody.

What cannot be written to stdout is one error, told once. A reader that is gone (``| head -1``)
has what it wants, and a stderr that takes nothing leaves nobody to tell: both change nothing,
so that the exit code stays that of the outcome.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

from harness.errors import NotComparable

_GONE = (errno.EPIPE, errno.ECONNRESET)


def hold_standard() -> None:
    """Open what was closed among descriptors 0 to 2 on the null device.

    A file or socket that is opened later would get the number of a closed one, and everything
    that writes to it by number would write there, the engine's processes included.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one: those below it are open by now.
            os.open(os.devnull, os.O_RDWR)


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Stand between a command and its streams; whoever is inside flushes what it wants told.

    Within, a write to stdout, or its flush, raises once:

    Raises:
        NotComparable: ``output.write-failed``: stdout did not take the whole result.
    """
    out, err = sys.stdout, sys.stderr
    sys.stdout = cast(TextIO, _Guard(out, tells=True))
    sys.stderr = cast(TextIO, _Guard(err, tells=False))
    try:
        yield
    finally:
        sys.stderr.flush()
        sys.stdout, sys.stderr = out, err


class _Guard:
    """A text stream that fails once, in one way; afterwards it takes everything and drops it."""

    def __init__(self, stream: TextIO | None, *, tells: bool) -> None:
        self._stream = stream
        self._tells = tells
        self._broken = False
        with contextlib.suppress(AttributeError, OSError):
            # A name on a disk may be no text; to print it must not be an error.
            cast(Any, stream).reconfigure(errors="backslashreplace")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def isatty(self) -> bool:
        """Tell whether somebody looks."""
        return self._stream is not None and self._stream.isatty()

    def write(self, text: str) -> int:
        """Write, or tell once that it cannot be done."""
        if not isinstance(text, str):
            raise TypeError(f"text, not {type(text).__name__}")  # so that no one takes it for bytes
        if text and not self._broken:
            try:
                _there(self._stream).write(text)
            except OSError as error:
                self._fail(error)
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        """Write each line."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Write what is held back."""
        if self._broken or self._stream is None:
            return
        try:
            self._stream.flush()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        self._broken = True
        if self._stream in (sys.__stdout__, sys.__stderr__) and self._stream is not None:
            # Python writes what is in its buffer once more when it ends.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)
        if self._tells and error.errno not in _GONE:
            raise NotComparable(
                "output.write-failed",
                expected="a place that takes the whole result",
                found=error.strerror or str(error),
                where="stdout",
                next="free some space there, or write elsewhere, and run the command again",
            ) from error


def _there(stream: TextIO | None) -> TextIO:
    if stream is None:
        raise OSError(errno.EBADF, "it is closed")
    return stream
