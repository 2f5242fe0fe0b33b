"""The public fixtures. ``pytest --fixtures`` shows their docstrings."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.plugin._baselines import KEEPER
from harness.plugin._marks import Needs
from harness.plugin._session import SESSION, HarnessSession

if TYPE_CHECKING:
    from harness.extraction.plan import EnginePlan
    from harness.plugin._baselines import BaselineKeeper
    from harness.plugin.baseline import SessionBaseline
    from harness.plugin.engine import Engine
    from harness.plugin.extraction import Extraction
    from harness.plugin.sample import Sample
    from harness.preflight import Census, Report
    from harness.settings import Settings

TINY = "kimi-k2.5-tiny"


class TinyKimiFactory:
    """Makes tiny Kimi-K2.5 checkpoints, each kind once a session."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(
        self,
        *,
        architecture: str = "wrapper",
        experts: str = "dense",
        dtype: str = "float32",
        layers: int = 6,
        seed: int = 0,
    ) -> Path:
        """Return the folder of a checkpoint, made now or before.

        Args:
            architecture: ``wrapper`` (KimiK25ForConditionalGeneration) or ``plain``
                (DeepseekV3ForCausalLM).
            experts: ``dense``, ``int4``, or ``int4-twin`` (dense, with int4's dequantised
                weights).
            dtype: ``float32`` or ``bfloat16``.
            layers: Decoder layers.
            seed: Chooses the weights; the same seed gives the same bytes everywhere.

        Raises:
            UsageError: ``models.*``.
        """
        from harness import models

        name = f"{architecture}-{experts}-{dtype}-{layers}-{seed}"
        # The maker knows a folder that it has made, and leaves it as it is.
        return models.make(
            TINY,
            self._folder / name,
            architecture=architecture,
            experts=experts,
            dtype=dtype,
            layers=layers,
            seed=seed,
        )


@pytest.fixture(scope="session")
def tiny_kimi_factory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyKimiFactory]:
    """Makes tiny Kimi-K2.5 checkpoints of a chosen kind; 2 s and 50 MB each, once a session."""
    folder = tmp_path_factory.mktemp("tiny-kimi")
    yield TinyKimiFactory(folder)
    # Three kept sessions of several models would fill a small disk; they can be made again.
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def tiny_kimi(tiny_kimi_factory: TinyKimiFactory) -> Path:
    """Folder of a tiny Kimi-K2.5 checkpoint (the wrapper, dense, float32); made once a session."""
    return tiny_kimi_factory()


@pytest.fixture(scope="session")
def hs_settings(pytestconfig: pytest.Config) -> Settings:
    """The plugin's settings as resolved, with the source of each."""
    return pytestconfig.stash[SESSION].settings


@pytest.fixture(scope="session")
def gpu_census() -> Census:
    """What NVML says of this machine's GPUs, as facts; asked in a child, once a session."""
    from harness.preflight import probe

    return probe.census()


@pytest.fixture(scope="session")
def clean_gpus(pytestconfig: pytest.Config) -> Report:
    """Preflight's report of a box that is CLEAN; an error otherwise. `engine` uses it on GPUs."""
    session: HarnessSession = pytestconfig.stash[SESSION]
    session.demand(Needs(engine=False, session_engine=False, gpus=1, kimi=False))
    from harness.plugin._preflight import examine

    found = session.inspection
    report = examine(session.settings, found.cuda if found else None)
    report.require_clean()
    return report


@pytest.fixture(scope="session")
def engine(
    pytestconfig: pytest.Config,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Engine]:
    """The session's engine: loaded exactly once, proved by the canary, ended at the end.

    Cost: one load (20 s for the tiny model on a CPU, 20 minutes for Kimi-K2.5).
    """
    session: HarnessSession = pytestconfig.stash[SESSION]
    session.demand(Needs(engine=True, session_engine=True, gpus=0, kimi=False))

    if session.looks_first:
        request.getfixturevalue("clean_gpus")

    def model() -> Path:
        given = session.settings.model
        return request.getfixturevalue("tiny_kimi") if given is None else given

    try:
        yield session.keeper.start(session.settings, model, tmp_path_factory.mktemp("engine"))
    finally:
        session.keeper.close()


@pytest.fixture(scope="session")
def extraction(
    pytestconfig: pytest.Config, engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> Extraction:
    """The canned prompts (``--hs-prompts``) through ``engine`` into a dataset; once a session."""
    from harness.plugin.extraction import run_extraction

    session: HarnessSession = pytestconfig.stash[SESSION]
    out = session.settings.out or tmp_path_factory.mktemp("extraction") / "out"
    done = run_extraction(engine, session.settings.prompts, out)
    session.keeper.note_extraction(done)
    return done


@pytest.fixture(scope="session")
def baseline(
    pytestconfig: pytest.Config,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    record_testsuite_property: Callable[[str, object], None],
) -> SessionBaseline:
    """Speeds recorded for this card, stack and model, and the judge; loads nothing."""
    from harness.baseline import packed, read_folders
    from harness.plugin._asked import attach_engine, engine_plan
    from harness.plugin.baseline import SessionBaseline
    from harness.reclaim import meter_of_this_machine

    session: HarnessSession = pytestconfig.stash[SESSION]
    settings = session.settings
    keeper: BaselineKeeper | None = pytestconfig.pluginmanager.get_plugin(KEEPER)
    assert keeper is not None

    def plan() -> EnginePlan:
        if settings.attach is not None:
            return attach_engine(settings).plan
        model = settings.model or request.getfixturevalue("tiny_kimi")
        return engine_plan(settings, model, tmp_path_factory.mktemp("baseline"))

    stored = read_folders([settings.record_baseline, settings.baselines, packed()])
    return SessionBaseline(
        keeper,
        plan,
        lambda: session.gpus,
        stored,
        tell=record_testsuite_property,
        meter=meter_of_this_machine(),
    )


@pytest.fixture(scope="session")
def sample_reader() -> Callable[[Path | str], Sample]:
    """Reads one sample file: ``sample_reader(path)``; numpy, torch only by ``.to_torch()``."""
    from harness.plugin.sample import read

    return read
