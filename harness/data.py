"""Where the program's own data lies: ``harness/_data`` in a wheel, ``fixtures/`` in a checkout."""

from __future__ import annotations

from pathlib import Path

from harness.errors import NotComparable

_PACKED = Path(__file__).parent / "_data"
_CHECKOUT = Path(__file__).parent.parent / "fixtures"


def data_path(name: str) -> Path:
    """Return the path of a data file, such as ``prompts/mixed.jsonl``.

    Raises:
        NotComparable: ``data.missing``: this installation lacks it.
    """
    for root in (_PACKED, _CHECKOUT):
        if (root / name).exists():
            return root / name
    raise NotComparable(
        "data.missing",
        expected=f"{name} in the installed package",
        found=f"neither {_PACKED} nor {_CHECKOUT} holds it",
        where=str(_PACKED),
        next="install the package again: pip install --force-reinstall hidden-state-harness",
    )
