"""Runs of pytest inside of a test, with our plugin and without this machine's own facts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

# Imported here, so that the sessions inside of this process need not import them again.
import harness.engine_facts
import harness.models
import harness.plugin.extraction  # noqa: F401
from fixtures import fake_nvml
from tests.unit.interpreters import StandIn


class Inner:
    """Runs a test file in a session of its own.

    Attributes:
        pytester: The folder of the session.
        python: Stands in for an environment with vLLM.
    """

    def __init__(
        self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, model: Path
    ) -> None:
        self.pytester = pytester
        self.model = model
        self.python = StandIn(pytester.path / "stand-in")
        self._monkeypatch = monkeypatch
        for name in [name for name in os.environ if name.startswith(("HARNESS_", "PYTEST_"))]:
            monkeypatch.delenv(name)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        # Records and locks of its own: other sessions may run on this machine.
        monkeypatch.setenv("HARNESS_STATE", str(pytester.path / "state"))
        monkeypatch.setenv("HARNESS_GPU_LOCKS", str(pytester.path / "locks"))
        # Other plugins take seconds; a test that wants one names it.
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        self.gpus([])

    def gpus(self, names: Sequence[str]) -> None:
        """Give the machine GPUs of these names; none means that there is no driver."""
        system = {} if names else {"errors": {"nvmlInit": 9}}
        self.box({"devices": [{"name": name} for name in names], "system": system})

    def box(self, state: Mapping[str, Any]) -> None:
        """Put a box of ``fixtures/fake_nvml`` in this machine's place, without a child."""
        whole = fake_nvml.expand(state)
        replace = self._monkeypatch.setattr
        replace("harness.preflight.probe.census", lambda probe=None: fake_nvml.read(whole, probe))
        replace("harness.preflight.check.look", lambda *_, **__: fake_nvml.machine(whole))
        replace("harness.preflight.check.SystemProcesses", lambda: fake_nvml.FakeProcesses(whole))

    def run(self, source: str, *args: str, python: StandIn | None = None) -> pytest.RunResult:
        """Run a test file in this process."""
        return self._run(self.pytester.runpytest_inprocess, source, args, python)

    def run_apart(self, source: str, *args: str) -> pytest.RunResult:
        """Run a test file in a process of its own; there this machine has its own GPUs."""
        return self._run(self.pytester.runpytest_subprocess, source, args, None)

    def _run(
        self, runner: Any, source: str, args: Sequence[str], python: StandIn | None
    ) -> pytest.RunResult:
        self.pytester.makepyfile(source)
        stand_in = python or self.python
        common = ("-p", "harness.plugin", "--strict-markers", "-ra", "-p", "no:cacheprovider")
        settings = (
            f"--hs-python={stand_in.python}",
            f"--hs-model={self.model}",
            "--hs-layers=1,3,4",
        )
        result: pytest.RunResult = runner(*common, *settings, *args)
        return result


@pytest.fixture
def inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tiny_kimi: Path) -> Inner:
    """A folder for a session inside of a test."""
    return Inner(pytester, monkeypatch, tiny_kimi)
