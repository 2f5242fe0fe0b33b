"""What bounds the path from GPU to a finished file: copy, check, hash, write, fsync.

Reported beside one another and never held to a figure: a disk is as fast as its machine and its
neighbours let it be. Pinned: that each stage works on this box, on the disk of ``--hs-out``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.settings import Settings
from tests.gpu.conftest import Figures
from tests.gpu.test_races import run

pytestmark = [pytest.mark.gpu, pytest.mark.engine, pytest.mark.slow]

STAGES = (
    "copy_to_host",
    "hash_one_thread",
    "check_one_thread",
    "spool_to_memory",
    "spool_to_disk",
    "spool_to_disk_fsync",
    "disk_alone_fsync",
)


def test_each_stage_of_the_output_path_tells_its_rate_beside_the_disks_own(
    hs_settings: Settings, tmp_path: Path, figures: Figures
) -> None:
    place = hs_settings.out.parent if hs_settings.out else tmp_path
    found = run(hs_settings.python, "output_path.py", str(place))
    figures(disk=str(place), **found)
    assert all(found[stage]["least"] > 0 for stage in STAGES), found
