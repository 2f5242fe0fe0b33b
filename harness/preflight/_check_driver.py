"""Does the driver fit to its own parts and to the CUDA that the engine was built with?"""

from __future__ import annotations

from collections.abc import Iterator

from harness.preflight._check import Check, Scene
from harness.preflight.verdict import Finding, Verdict


def _module(scene: Scene) -> Iterator[Finding]:
    loaded, library = scene.host.module, scene.census.driver
    if loaded and library and loaded != library:
        yield Finding(
            "driver.module",
            Verdict.DIRTY,
            f"kernel module {loaded}, library {library}",
            "one version",
            "reboot, or reload the nvidia kernel module",
        )


def _cuda(scene: Scene) -> Iterator[Finding]:
    built, offered = _version(scene.need.cuda), scene.census.cuda_driver
    if built is None or not offered:
        return
    driver = offered // 1000, offered % 1000 // 10
    text = (
        f"the engine was built with CUDA {scene.need.cuda}, driver {scene.census.driver} offers "
        f"{driver[0]}.{driver[1]}"
    )
    expected, step = "a driver that is as new", "a newer driver, or wheels for an older CUDA"
    if driver[0] < built[0]:
        yield Finding("driver.cuda", Verdict.DIRTY, text, expected, step)
    elif driver < built:
        text += '; kernels that are compiled on the box fail ("unsupported toolchain")'
        yield Finding("driver.cuda", Verdict.UNKNOWN, text, expected, step)


def _version(text: str) -> tuple[int, int] | None:
    parts = text.split(".")
    if len(parts) < 2 or not all(part.isdecimal() for part in parts[:2]):
        return None
    return int(parts[0]), int(parts[1])


CHECKS = (
    Check(
        "driver.module",
        "kernel module and library",
        "one version",
        "after an upgrade without a reboot everything that starts fails",
        _module,
    ),
    Check(
        "driver.cuda",
        "driver against the CUDA of the engine's wheels",
        "the driver's CUDA is at least theirs; an older minor version is UNKNOWN",
        "an older major version cannot start; with an older minor one the INT4 experts' repack of "
        "Kimi-K2.5 failed after all 64 shards were loaded",
        _cuda,
    ),
)
