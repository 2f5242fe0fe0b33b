"""A model in words that two machines agree on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness import models
from harness.errors import NotComparable
from harness.models import PROFILES, KimiShape


def model_name(path: Path) -> str:
    """Return a profile with all that decides its speed, or else the checkpoint's fingerprint.

    Args:
        path: Folder of the checkpoint.

    Raises:
        UsageError: As :func:`harness.models.read`.
        CheckFailed: As :func:`harness.models.fingerprint`.
    """
    facts = models.read(path)
    try:
        profile = _profile(models.shape_of(path), made=facts.weights_at_load)
    except NotComparable:
        profile = None
    if profile is None:
        return models.fingerprint(path)
    words = [
        profile,
        "wrapper" if facts.is_wrapper else "plain",
        f"{facts.num_layers} layers",
        facts.quantization or "dense",
        *(["weights made at load"] if facts.weights_at_load else []),
    ]
    return ", ".join(words)


def _profile(shape: KimiShape, *, made: bool) -> str | None:
    """Return the profile of this shape; a slice is any number of layers of the real width."""
    for name, profile in PROFILES.items():
        known = profile.shape
        if made:
            known = replace(known, num_hidden_layers=shape.num_hidden_layers)
        # A text model has no vision tower of its own; its speed does not depend on one.
        if replace(known, vision=shape.vision) == shape and (profile.makes == "config") == made:
            return name
    return None
