"""The plugin's options: each setting as an option and as an ini key, read into one object."""

from __future__ import annotations

import os

import pytest

from harness.errors import HarnessError
from harness.settings import Settings, definitions, resolve


def add_options(parser: pytest.Parser) -> None:
    """Register every setting as ``--hs-...`` and ``hs_...``."""
    group = parser.getgroup("harness", "hidden-state harness")
    for setting in definitions():
        about = f"{setting.help}; ini: {setting.ini}, environment: {setting.variable}"
        # Texts, read by the settings: one message for a bad value, wherever it stands.
        if setting.bare:
            group.addoption(
                setting.option,
                dest=setting.ini,
                metavar=setting.metavar,
                nargs="?",
                const=setting.bare,
                default=None,
                help=about,
            )
        elif setting.metavar:
            group.addoption(
                setting.option, dest=setting.ini, metavar=setting.metavar, default=None, help=about
            )
        else:
            group.addoption(
                setting.option,
                dest=setting.ini,
                action="store_const",
                const="yes",
                default=None,
                help=about,
            )
        parser.addini(setting.ini, f"{setting.help}; as {setting.option}", default=None)


def read_settings(config: pytest.Config) -> Settings:
    """Resolve the settings of a test session.

    Raises:
        pytest.UsageError: A value cannot be read.
    """
    names = [setting.name for setting in definitions()]
    try:
        return resolve(
            command_line={name: config.getoption(f"hs_{name}") for name in names},
            environment=os.environ,
            ini={name: config.getini(f"hs_{name}") for name in names},
            here=config.invocation_params.dir,
            ini_file=config.inipath,
        )
    except HarnessError as error:
        raise pytest.UsageError(str(error)) from None
