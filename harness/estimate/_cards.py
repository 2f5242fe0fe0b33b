"""GPUs by name, with the memory that an engine can divide.

vLLM multiplies ``gpu_memory_utilization`` with the total that CUDA reports, which is less than
``nvidia-smi``'s and less than the number on the box. So the table holds CUDA's.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from harness.estimate._units import GIB, parse_size


@dataclass(frozen=True)
class Card:
    """One kind of GPU.

    Attributes:
        name: What the user types.
        title: What people call it.
        memory: Bytes that CUDA reports as its total.
        nominal: The size that it is sold by, in GB; None for a size that the user gave.
        source: Where ``memory`` was seen.
    """

    name: str
    title: str
    memory: int
    nominal: int | None
    source: str


def _card(name: str, title: str, memory_gib: float, nominal: int, source: str) -> Card:
    return Card(name, title, int(memory_gib * GIB), nominal, source)


CARDS = MappingProxyType(
    {
        card.name: card
        for card in (
            _card("h100", "H100 80 GB", 79.1, 80, "PyTorch's out-of-memory texts: 79.1 to 79.3"),
            _card(
                "rtx-pro-6000",
                "RTX PRO 6000 Blackwell 96 GB",
                94.97,
                96,
                "CUDA's total in antirez/ds4#431, beside 97,887 MiB of nvidia-smi",
            ),
            _card(
                "h200",
                "H200 141 GB",
                139.8,
                141,
                "PyTorch's out-of-memory texts: 139.80 and 139.81; nvidia-smi: 143,771 MiB",
            ),
            _card("b200", "B200 180 GB", 178.35, 180, "PyTorch's out-of-memory texts: 178.35"),
        )
    }
)
"""Known cards by name, smallest first."""


def card(text: str, where: str = "--gpu-memory") -> Card:
    """Return a card by its name, by the size it is sold by, or by a size of its own.

    ``96GB`` means the card that is sold by that size, whose memory is a little less than
    96 GiB; ``94.5GiB`` and other sizes mean exactly that.

    Args:
        text: What the user gave.
        where: The option that it was given to.

    Raises:
        UsageError: ``estimate.bad-size``.
    """
    wanted = text.strip().lower()
    if wanted in CARDS:
        return CARDS[wanted]
    size = parse_size(text, where)
    for known in CARDS.values():
        if known.nominal is not None and size == known.nominal * 10**9:
            return known
    return Card(text.strip(), text.strip(), size, None, "as given")
