"""The page ``docs/preflight.md``, made from the checks, so that it cannot say something else."""

from __future__ import annotations

from collections.abc import Iterator

from harness.preflight._check import Check
from harness.preflight._nvml_errors import MEANINGS
from harness.preflight.check import CHECKS

_HEAD = """# Preflight

Is this box fit for a load? Made by `harness preflight --markdown`.

```
harness preflight                                   # every visible GPU
harness preflight --profile kimi-k2.5 -tp 8 --out hs
harness preflight --model /models/Kimi-K2.5 -tp 8 --wait 60 --json
```

| verdict | means | exit code |
|---|---|---|
| CLEAN | an engine can be started | 0 |
| DIRTY | it would fail, be slowed down, or disturb somebody | 3 |
| UNKNOWN | it cannot be said: a driver that hangs, a figure that is not told, no GPU at all | 3 |

A machine without a GPU is UNKNOWN with one plain sentence: nothing that needs one can be started,
so `harness preflight && ...` must not go on. An engine on a CPU is never held to preflight.

**Device memory is the verdict; the process list only explains it.** The list is empty or wrong in
containers, under MPS, for memory that another process has mapped, and after a kill. A holder is
told as the harness's own, live, ended but not collected, ended and still listed, hidden (a pid of
the host, seen from a container), stuck in the driver, or none visible, each with its next
command. A pid is only believed where pids are the host's, or where that process has the GPU's
device file open.

**Nothing is ever ended here.** `harness reclaim` ends what the harness started, and others by
name only.

**NVML is asked in a child process** with a deadline (`--deadline`, 4.5 s), one thread a device: a
driver that hangs or crashes costs that child, and what the other devices said is kept. A child
that crashes is asked again without the device that did it. The harness's own process loads
neither NVML nor CUDA. Where its interpreter has no nvidia-ml-py (`pip install
"hidden-state-harness[gpu]"`), the engine's (`--python`) is asked. A first call after boot may be
slow while the driver wakes every GPU: switch persistence mode on.

`harness extract` and the fixture `engine` look first where the engine runs on GPUs:
`preflight.dirty` and `preflight.unknown` refuse the load with exit code 3. A check is left out by
its id or family, `all` leaves out the look: `harness preflight --skip`, `harness extract
--skip-check` (or `--skip-preflight`), `pytest --hs-preflight-skip`, comma-parted.

With `--model` or `--profile`, memory of device and host is that of `harness plan`; without, only
the share (`--gpu-memory-utilization`) is asked for.
"""

_ERRORS = """## What NVML may say

An error is held against a start where the start depends on the answer (start-up, handle, memory).
To another question (ECC, clocks, links, processes) it is told, or passed over where a board just
does not have such a thing.
"""


def page() -> str:
    """Return the page."""
    return "\n".join([_HEAD, *_checks(), _ERRORS, *_errors(), ""])


def _checks() -> Iterator[str]:
    yield "## Checks\n"
    yield "The id is the switch; the word before the dot is the family.\n"
    yield "| id | looks at | passes | because |"
    yield "|---|---|---|---|"
    yield from map(_row, CHECKS)
    yield ""


def _row(check: Check) -> str:
    return f"| `{check.id}` | {check.what} | {check.threshold} | {check.reason} |"


def _errors() -> Iterator[str]:
    yield "| code | NVML's name | where it is needed | elsewhere | means |"
    yield "|---|---|---|---|---|"
    for code, said in MEANINGS.items():
        elsewhere = "passes" if said.optional == "CLEAN" else said.optional
        yield f"| {code} | {said.name} | {said.required} | {elsewhere} | {said.sentence} |"
