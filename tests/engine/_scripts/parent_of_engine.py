"""A parent of a real engine with two workers, to be killed: ``parent_of_engine.py MODEL FOLDER``.

It prints the workers' pids once the engine is loaded, and prefills until it is ended.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from harness.extraction import EngineOptions, open_session
from harness.extraction.plan import plan_engine


def main() -> None:
    """Load, tell, work."""
    model, folder = Path(sys.argv[1]), Path(sys.argv[2])
    options = EngineOptions(model=model, layers="1,3", dtype="float32", tensor_parallel_size=2)
    plan = plan_engine(options, longest_prompt=100, spool=folder / "spool")
    with open_session(plan, log=folder / "engine.log") as session:
        loaded = session.load()
        print(json.dumps([worker["pid"] for worker in loaded.workers]), flush=True)
        session.plain([[1, 2, 3]] * 8, repeats=1_000_000)


if __name__ == "__main__":
    main()
