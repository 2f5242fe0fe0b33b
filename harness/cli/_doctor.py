"""``harness doctor``: placeholder until its checks land below."""

from __future__ import annotations
