"""One wrapper engine a capture and one reference a model for the whole session; few engines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from harness import models
from harness.capture.session import EngineSession
from harness.extraction import EngineOptions
from harness.oracles.reference import ReferenceHost
from tests.engine._starts import MOST, logs_of_starts
from tests.engine._support import engine_of

FAULTS = Path(__file__).parent / "faults"
LONGEST = 300
GEN1 = Path(__file__).parents[2] / ".venv" / "gen1" / "bin" / "python"


_STARTS = pytest.StashKey[int]()


@pytest.fixture(scope="session", autouse=True)
def few_engines(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Hold what the tests of every day cost: an engine takes half a minute to start."""
    yield
    logs = logs_of_starts(tmp_path_factory.getbasetemp())
    request.config.stash[_STARTS] = len(logs)
    if "not slow" in request.config.getoption("markexpr"):
        listing = "\n".join(map(str, logs))
        assert len(logs) <= MOST, f"{len(logs)} engines were started, at most {MOST}:\n{listing}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if (starts := terminalreporter.config.stash.get(_STARTS, None)) is not None:
        terminalreporter.write_line(f"engine starts: {starts}")


@pytest.fixture(scope="session")
def tiny_wrapper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "wrapper"
    models.make("kimi-k2.5-tiny", folder)
    return folder


@pytest.fixture(scope="session")
def reference(
    tiny_wrapper: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ReferenceHost]:
    with ReferenceHost(
        tiny_wrapper, Path(sys.executable), tmp_path_factory.mktemp("reference")
    ) as host:
        yield host


@pytest.fixture(scope="session")
def tiny_plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "plain"
    models.make("kimi-k2.5-tiny", folder, architecture="plain", dtype="float32")
    return folder


@pytest.fixture(scope="session")
def plain_reference(
    tiny_plain: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ReferenceHost]:
    out = tmp_path_factory.mktemp("reference")
    with ReferenceHost(tiny_plain, Path(sys.executable), out) as host:
        yield host


@pytest.fixture(scope="session")
def gen1_python() -> Path:
    """Interpreter of the lane with vLLM 0.16."""
    if not GEN1.exists():
        pytest.skip("no environment .venv/gen1: make gen1")
    return GEN1


Lane = Callable[[EngineOptions], EngineOptions]


def lane_of(name: str, request: pytest.FixtureRequest) -> Lane:
    """Return what turns options into those of a lane: ``native``, ``patched``, ``patched-gen1``."""
    if name == "native":
        return lambda options: replace(options, capture="native")
    if name == "patched":
        return lambda options: replace(options, capture="patched")
    python: Path = request.getfixturevalue("gen1_python")
    return lambda options: replace(options, capture="patched", python=python)


@pytest.fixture(params=["native", pytest.param("patched-gen1", marks=pytest.mark.slow)])
def lane(request: pytest.FixtureRequest) -> Lane:
    return lane_of(request.param, request)


# Unsorted on purpose: the engine answers in ascending order, the file must not.
ASKED = "4,1,3"


@pytest.fixture(scope="session")
def fault_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a test says which fault an engine of ``faulty`` shall have; none while it is away."""
    return tmp_path_factory.mktemp("fault") / "fault.json"


@contextmanager
def faulty(options: EngineOptions, folder: Path, fault_file: Path) -> Iterator[EngineSession]:
    """An engine that is sound until a test writes a fault of ``faults/seeded_faults.py``."""
    env = {"PYTHONPATH": str(FAULTS), "HARNESS_TEST_FAULT": str(fault_file)}
    preload = ["seeded_faults"]
    with engine_of(options, folder, longest_prompt=LONGEST, preload=preload, env=env) as session:
        yield session


@pytest.fixture(scope="session")
def native_engine(
    tiny_wrapper: Path, fault_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineSession]:
    """The one native engine of parity and canary; those of other files have no faults in them."""
    options = EngineOptions(model=tiny_wrapper, layers=ASKED, dtype="float32", capture="native")
    with faulty(options, tmp_path_factory.mktemp("engine"), fault_file) as session:
        assert not session.spec.chunked
        yield session


# Of a module: an idle worker of vLLM 0.16 keeps a core busy, which all later tests would miss.
@pytest.fixture(
    scope="module",
    params=["native", "patched-gen1", pytest.param("patched", marks=pytest.mark.slow)],
)
def wrapper_engine(
    request: pytest.FixtureRequest, tiny_wrapper: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineSession]:
    """Every capture that must give the same rows; the patched ones with prompts cut in chunks."""
    if request.param == "native":
        yield request.getfixturevalue("native_engine")
        return
    # CPU MLA takes no prompt in chunks.
    options = EngineOptions(
        model=tiny_wrapper,
        layers=ASKED,
        dtype="float32",
        max_num_batched_tokens=64,
        use_mla=False,
    )
    options = lane_of(request.param, request)(options)
    with engine_of(options, tmp_path_factory.mktemp("engine"), longest_prompt=LONGEST) as session:
        assert session.spec.chunked
        yield session
