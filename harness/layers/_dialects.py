"""One canonical *depth*, and the dialects that other projects speak.

Depth ``d`` is the residual stream after ``d`` decoder layers: 0 is the embedding output, ``L``
(the number of layers) is the stream after the last layer and *before* the final norm. Every
dialect is converted to it once, here, before an engine starts.

Sources of the dialects (id -> depth, for a model with ``L`` layers):

* ``vllm`` (``k -> k``, 0..L): ``eagle_aux_hidden_state_layer_ids`` of vLLM. Its model loops
  append the stream entering layer ``k``, and after the loop the one before the norm
  (``model_executor/models/deepseek_v2.py``, ``interfaces.py`` of 0.32.0); measured against
  forward hooks.
* ``speculators-gen1`` (``i -> i + 1``, 0..L-1): ``layer_ids`` of speculators 0.3 and 0.4, whose
  generator captures *after* layer ``i``; measured against transformers.
* ``hf`` (``k -> k``, 0..L-1): index into ``output_hidden_states`` of transformers. Its entry
  ``L`` has passed the final norm, so it is not depth ``L`` and is refused.
* ``sglang`` (``i -> i + 1``, 0..L-1): explicit ids given to ``set_eagle3_layers_to_capture``. It
  adds one, since its loop captures what *enters* a layer (model files of sgl-project/sglang).
  Since its pull request 25454 it adds one only when the first id is 1 and else reads ids as
  vLLM does: for such ids say ``vllm``.
* ``modelopt`` (``i -> i + 1``, 0..L-1): 0-based decoder layers, by their *output*. Its hooks sit
  on layer ``i``, and its dump through transformers reads ``hidden_states[i + 1]``
  (NVIDIA/Model-Optimizer, ``collect_hidden_states/``).

Sources of the presets: ``eagle3`` is the default of vLLM's ``SupportsEagle3`` interface and of
SGLang, depths ``2, L//2, L-3`` (ModelOpt writes the same points as ``1, L//2-1, L-4``), with the
verifier's depth ``L`` last. ``speculators-0.9`` are the ids that its launcher gives to vLLM, the
same four depths. ``speculators-0.3`` are the same *numbers* in its own dialect, so its three
auxiliary depths lie one layer deeper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from harness.errors import UsageError


@dataclass(frozen=True)
class Dialect:
    """How one project numbers layers.

    Attributes:
        name: The name given to ``--dialect``.
        offset: Depth minus id.
        names_last: Whether some id of the dialect means depth L.
        meaning: What an id names, in words.
    """

    name: str
    offset: int
    names_last: bool
    meaning: str

    def ids(self, num_layers: int) -> range:
        """Return every id that the dialect has in a model of ``num_layers`` layers."""
        last = num_layers if self.names_last else num_layers - 1
        return range(0, last - self.offset + 1)


def _by_name(*dialects: Dialect) -> Mapping[str, Dialect]:
    return MappingProxyType({dialect.name: dialect for dialect in dialects})


DIALECTS: Final[Mapping[str, Dialect]] = _by_name(
    Dialect("vllm", 0, True, "the stream entering layer k, or entering the final norm for k = L"),
    Dialect("speculators-gen1", 1, True, "the stream after layer i, counted from 0"),
    Dialect("hf", 0, False, "hidden_states[k] of transformers, k below L"),
    Dialect("sglang", 1, True, "the output of layer i, counted from 0"),
    Dialect("modelopt", 1, True, "the output of decoder layer i, counted from 0"),
)


@dataclass(frozen=True)
class Preset:
    """A named choice of layers, with the dialect in which its project states it."""

    name: str
    dialect: str
    ids: Callable[[int], tuple[int, ...]]
    formula: str


# The first three points of each formula are only distinct from seven layers on.
SMALLEST_PRESET_MODEL: Final = 7

PRESETS: Final[Mapping[str, Preset]] = MappingProxyType(
    {
        "eagle3": Preset("eagle3", "vllm", lambda n: (2, n // 2, n - 3, n), "2, L//2, L-3, L"),
        "speculators-0.3": Preset(
            "speculators-0.3",
            "speculators-gen1",
            lambda n: (2, n // 2, n - 3, n - 1),
            "2, L//2, L-3, L-1",
        ),
        "speculators-0.9": Preset(
            "speculators-0.9", "vllm", lambda n: (2, n // 2, n - 3, n), "2, L//2, L-3, L"
        ),
    }
)


def usual(num_layers: int) -> str:
    """Return the layers where nobody named any: speculators' preset, ids where it collides."""
    if num_layers >= SMALLEST_PRESET_MODEL:
        return "speculators-0.9"
    ids = (2, 3, num_layers - 1) if num_layers > 4 else (1, max(1, num_layers - 1))
    return ",".join(map(str, dict.fromkeys(ids)))


def to_depth(layer_id: int, dialect: str, num_layers: int) -> int:
    """Convert one id of ``dialect`` to its depth.

    Raises:
        UsageError: The id is negative, out of range, or names no depth (``hf`` id L).
    """
    speaker = dialect_named(dialect)
    allowed = speaker.ids(num_layers)
    span = f"an id from 0 to {allowed[-1]} (dialect {dialect}, {num_layers} layers)"
    require(layer_id >= 0, "layers.negative", span, str(layer_id))
    if dialect == "hf" and layer_id == num_layers:
        raise UsageError(
            "layers.hf-post-norm",
            expected=span,
            found=f"{layer_id}: hidden_states[{num_layers}] has passed the final norm, "
            f"so it is not depth {num_layers}",
            where="--layers",
            next="leave it out (the training layout adds depth L), or use --dialect vllm",
        )
    require(layer_id in allowed, "layers.out-of-range", span, str(layer_id))
    return layer_id + speaker.offset


def to_dialect(depth: int, dialect: str, num_layers: int) -> int:
    """Convert a depth to the id that names it in ``dialect``.

    Raises:
        UsageError: No id of the dialect names that depth.
    """
    speaker = dialect_named(dialect)
    layer_id = depth - speaker.offset
    allowed = speaker.ids(num_layers)
    require(
        layer_id in allowed,
        "layers.not-in-dialect",
        f"a depth from {allowed[0] + speaker.offset} to {allowed[-1] + speaker.offset} "
        f"(dialect {dialect}, {num_layers} layers)",
        f"depth {depth}",
    )
    return layer_id


def dialect_named(name: str) -> Dialect:
    found = DIALECTS.get(name)
    if found is None:
        raise UsageError(
            "layers.unknown-dialect",
            expected="one of " + ", ".join(DIALECTS),
            found=repr(name),
            where="--dialect",
            next="give --dialect one of these names",
        )
    return found


def require(
    condition: bool, id: str, expected: str, found: str, *, next: str = "correct --layers"
) -> None:
    if not condition:
        raise UsageError(id, expected=expected, found=found, where="--layers", next=next)
