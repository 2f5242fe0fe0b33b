"""Failures over the socket: with their class, their id and what they know, and no pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from harness import errors
from harness.errors import EngineFailed, HarnessError
from harness.lease.refusals import keeper_failed

_KINDS: dict[str, type[HarnessError]] = {
    kind.__name__: kind
    for kind in (
        errors.CheckFailed,
        errors.UsageError,
        errors.Refused,
        errors.NotComparable,
        errors.EngineFailed,
    )
}


def error_to_json(error: BaseException) -> dict[str, Any]:
    """Return a failure as a JSON object; details that JSON cannot hold are left out."""
    if not isinstance(error, HarnessError):
        error = keeper_failed(error)
    return {
        "kind": type(error).__name__,
        "failure": error.failure.to_json(),
        "details": {name: value for name, value in error.details.items() if _fits(value)},
    }


def error_from_json(body: Mapping[str, Any]) -> HarnessError:
    """Return the failure that the other side met."""
    kind = _KINDS.get(str(body["kind"]), EngineFailed)
    return kind(**body["failure"], **body["details"])


def _fits(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True
