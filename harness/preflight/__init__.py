"""Is this box fit for a load? Facts, verdicts, a report; nothing is ended here.

NVML is asked in a child process (:mod:`harness.preflight.probe`), so a driver in trouble costs
seconds and not the session. Device memory is the verdict; the process list only explains it.
"""

from __future__ import annotations

from harness.preflight.check import CHECKS, preflight
from harness.preflight.facts import Census, Device
from harness.preflight.need import Need
from harness.preflight.probe import Probe, Reader, census, used_bytes
from harness.preflight.report import Report, Row
from harness.preflight.verdict import Finding, Verdict

__all__ = [
    "CHECKS",
    "Census",
    "Device",
    "Finding",
    "Need",
    "Probe",
    "Reader",
    "Report",
    "Row",
    "Verdict",
    "census",
    "preflight",
    "used_bytes",
]
