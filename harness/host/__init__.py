"""The engine in a process of its own: started, called, watched and ended from here."""

from __future__ import annotations

from harness.host.client import Host
from harness.host.spec import HostSpec

__all__ = ["Host", "HostSpec"]
