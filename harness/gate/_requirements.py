"""What a vLLM wheel asks for, and what of it an engine on a CPU needs."""

from __future__ import annotations

import re
import zipfile
from dataclasses import dataclass
from email.parser import BytesParser
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from harness.errors import Refused

# CUDA builds that cannot load beside a torch without CUDA, or that no CPU run uses.
_LEFT_OUT = frozenset({"torchvision", "torchaudio", "torchcodec", "intel-openmp", "triton"})
_CUDA = re.compile(r"^Requires-Dist: (nvidia-|cuda-|triton)[^\n]*\n", re.M)


@dataclass(frozen=True)
class Needs:
    """What to install before a release.

    Attributes:
        torch: The release's own torch, without the local part that only another index has,
            such as ``torch==2.9.1``.
        rest: Every other requirement, as pip takes it.
        left_out: Names that are asked for and not installed.
    """

    torch: str
    rest: tuple[str, ...]
    left_out: tuple[str, ...]


def needs_of(wheel: Path) -> Needs:
    """Read a wheel's requirements for this Python and machine.

    Raises:
        Refused: ``gate.broken-wheel``: no wheel, or one without a torch among its needs.
    """
    torch, rest, left_out = "", [], []
    try:
        for asked in map(Requirement, _requires(wheel)):
            if asked.marker is not None and not asked.marker.evaluate({"extra": ""}):
                continue
            name = canonicalize_name(asked.name)
            if name == "torch":
                torch = f"torch{_public(str(asked.specifier))}"
            elif name in _LEFT_OUT:
                left_out.append(name)
            else:
                asked.marker = None
                rest.append(str(asked))
        if not torch:
            raise ValueError("it asks for no torch")
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, InvalidRequirement) as error:
        raise Refused(
            "gate.broken-wheel",
            expected="a wheel of vLLM",
            found=str(error),
            where=str(wheel),
            next="fetch it again",
        ) from error
    return Needs(torch, tuple(rest), tuple(sorted(left_out)))


def without_cuda(metadata: str) -> str:
    """Return torch's metadata without the CUDA packages that it asks for.

    They are 3 GB that a CPU run does not use, and pip would install them for any package that
    asks for torch.
    """
    return _CUDA.sub("", metadata)


def _requires(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        if not names:
            raise ValueError("no METADATA in it")
        body = BytesParser().parsebytes(archive.read(names[0]))
    return list(body.get_all("Requires-Dist") or [])


def _public(specifier: str) -> str:
    """``==2.9.1+cpu`` asks for a build that the usual index lacks; the release is the same."""
    return re.sub(r"\+[A-Za-z0-9.]+", "", specifier)
