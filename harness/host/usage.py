"""Some failures that an operation foresaw are the user's to mend, not the engine's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from harness.errors import EngineFailed, UsageError


@contextmanager
def usage_errors(*prefixes: str) -> Iterator[None]:
    """Turn a child's foreseen error into a :class:`UsageError` by the start of its id.

    Args:
        prefixes: Starts of ids, such as ``prompts.``; other failures pass unchanged.

    Raises:
        UsageError: With the id and the facts that the child reported.
    """
    try:
        yield
    except EngineFailed as error:
        failure = error.failure
        if not failure.id.startswith(prefixes):
            raise
        raise UsageError(
            failure.id,
            expected=failure.expected,
            found=failure.found,
            where=failure.where,
            next=failure.next,
        ) from error
