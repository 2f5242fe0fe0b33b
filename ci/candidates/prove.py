"""Climb rung cpu for releases, one environment at a time, and write evidence of each.

    python ci/candidates/prove.py 0.12.0 0.16.0 0.32.0 --work DIR --out fixtures/evidence

Run it with an interpreter that has the harness, torch and transformers (``.venv/gen2``): the
reference is computed there. An environment takes 3 GB and is removed after its release.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from harness.gate.cpu import Workplace, climb
from harness.gate.scale import RungStatus


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("releases", nargs="+")
    parser.add_argument("--work", type=Path, required=True, help="folder for models and logs")
    parser.add_argument("--out", type=Path, required=True, help="folder for evidence")
    parser.add_argument("--reference-python", type=Path, default=Path(sys.executable))
    parser.add_argument("--python", type=Path, help="take this environment instead of making one")
    chosen = parser.parse_args()
    workplace = Workplace(chosen.work, chosen.reference_python)
    chosen.out.mkdir(parents=True, exist_ok=True)
    worst = 0
    for release in chosen.releases:
        started = time.monotonic()

        def say(text: str, release: str = release, started: float = started) -> None:
            print(f"{release} +{time.monotonic() - started:.0f}s {text}", flush=True)

        result, evidence = climb(release, workplace, python=chosen.python, progress=say)
        path = evidence.write(chosen.out)
        say(f"{result.status}: {result.reason} ({path.name})")
        worst = max(worst, int(result.status is not RungStatus.PASSED))
    return worst


if __name__ == "__main__":
    sys.exit(main())
