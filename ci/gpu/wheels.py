"""The wheels of a pack: pinned, downloaded for the GPU box's Python, unpacked into one folder."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from failures import GpuError, last_lines

PYTHON = "3.12"
# Newest first, as pip tries them; llguidance and vLLM need the newer ones.
_PLATFORMS = (
    *("manylinux_2_31_x86_64", "manylinux_2_28_x86_64", "manylinux_2_27_x86_64"),
    *("manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64"),
)
_PIN = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9.!+_-]+)")
_PURE = "-none-any.whl"


@dataclass(frozen=True)
class Pin:
    """One package in one version; ``pure`` where a wheel for any machine is demanded."""

    name: str
    version: str
    pure: bool = False

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"

    def matches(self, wheel: str) -> bool:
        """Say whether a wheel of this file name is the package's."""
        name, version = [*wheel.split("-"), ""][:2]
        return (_normal(name), version) == (_normal(self.name), self.version)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def parse_pins(lines: Iterable[str], *, where: object, pure: bool = False) -> tuple[Pin, ...]:
    """Read ``package==version`` lines; comments and empty lines are passed over.

    Raises:
        GpuError: A line says something else.
    """
    pins = []
    for line in filter(None, (line.split("#")[0].strip() for line in lines)):
        found = _PIN.fullmatch(line)
        if found is None:
            raise GpuError(
                "gpu.bad-pin",
                expected="package==version",
                found=line,
                where=where,
                next="name one version of one package",
            )
        pins.append(Pin(found["name"], found["version"], pure))
    return tuple(pins)


def collect(pins: Sequence[Pin], folder: Path) -> tuple[Path, ...]:
    """Return one wheel in ``folder`` for each pin, downloading those that are not there.

    Raises:
        GpuError: pip failed, or a wheel is not what the pin wants.
    """
    missing = [pin for pin in pins if not _wheels(pin, folder)]
    if missing:
        _download(missing, folder)
    return tuple(_the_wheel(pin, folder) for pin in pins)


def _wheels(pin: Pin, folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.whl") if pin.matches(path.name))


def _the_wheel(pin: Pin, folder: Path) -> Path:
    found = _wheels(pin, folder)
    if len(found) != 1:
        raise GpuError(
            "gpu.wheels",
            expected=f"one wheel of {pin}",
            found=", ".join(path.name for path in found) or "none",
            where=folder,
            next="remove those that are not for the GPU box, or give an empty folder",
        )
    if pin.pure and not found[0].name.endswith(_PURE):
        raise GpuError(
            "gpu.not-pure",
            expected=f"a wheel of {pin} that runs on any machine (*{_PURE})",
            found=found[0].name,
            where="--extra",
            next="pin it in ci/gpu/wheels.txt and see that its libraries load on the GPU box",
        )
    return found[0]


def _download(pins: Sequence[Pin], folder: Path) -> None:
    platforms = [word for name in _PLATFORMS for word in ("--platform", name)]
    command = [
        *(sys.executable, "-m", "pip", "download", "-q", "--no-input"),
        *("--disable-pip-version-check", "--no-deps", "--only-binary=:all:"),
        *("--python-version", PYTHON, "--implementation", "cp", *platforms),
        *("-d", str(folder), *map(str, pins)),
    ]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise GpuError(
            "gpu.no-wheel",
            expected=f"{len(pins)} wheels for Python {PYTHON} on Linux, x86_64, through pip",
            found=last_lines(done.stdout + done.stderr),
            where=f"pip download -d {folder}",
            next="check the network, pip's settings (`pip config list`) and disk space; "
            "with --wheels DIR, what is there is not fetched again",
        )


def unpack(wheel: Path, site: Path, stays: Callable[[str], bool]) -> None:
    """Unpack one wheel as pip would install its Python parts: what ``stays``, no scripts.

    Raises:
        GpuError: The file is no wheel, or a part of it is damaged.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                name = _installed_name(member.filename)
                if name is None or member.is_dir() or not stays(name):
                    continue
                target = site / name
                if not target.resolve().is_relative_to(site.resolve()):
                    raise zipfile.BadZipFile(f"{member.filename} leaves the folder")
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as source, target.open("wb") as sink:
                    shutil.copyfileobj(source, sink, 1 << 20)
    except (zipfile.BadZipFile, EOFError, ValueError) as error:
        raise GpuError(
            "gpu.cut-wheel",
            expected="a whole wheel",
            found=f"{error} ({wheel.stat().st_size} bytes)",
            where=wheel,
            next="remove this file, run it again",
        ) from None


def _installed_name(name: str) -> str | None:
    """Return where a file of a wheel is installed, None for scripts and headers."""
    parts = name.split("/")
    if not parts[0].endswith(".data"):
        return name
    return "/".join(parts[2:]) if parts[1:2] in (["purelib"], ["platlib"]) else None
