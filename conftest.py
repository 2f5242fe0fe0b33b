"""Activates the harness's own plugin, also where the package is not installed."""

pytest_plugins = ["harness.plugin"]
