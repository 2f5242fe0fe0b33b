"""From the caller's layer ids to a plan: what is captured, and in which order it is written."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from harness.errors import UsageError
from harness.layers._dialects import (
    DIALECTS,
    PRESETS,
    SMALLEST_PRESET_MODEL,
    Preset,
    dialect_named,
    require,
    to_depth,
)

LAYOUTS: Final = ("training", "raw")


@dataclass(frozen=True)
class LayerPlan:
    """Which depths are captured and in which order they are written.

    Attributes:
        num_layers: Decoder layers of the model, L.
        dialect: Dialect of ``caller_ids``; a preset brings its own.
        layout: ``training`` (depth L is the last column) or ``raw`` (as asked).
        caller_ids: The ids as the caller gave them.
        depths: Depth of each column of a sample file, in file order.
        engine_depths: What the engine captures: sorted, unique, always with L, which the
            canary needs.
        columns: For each file column its index in ``engine_depths``.
        preset: Name of the preset, if one was given.
    """

    num_layers: int
    dialect: str
    layout: str
    caller_ids: tuple[int, ...]
    depths: tuple[int, ...]
    engine_depths: tuple[int, ...]
    columns: tuple[int, ...]
    preset: str | None = None

    def explain(self) -> str:
        """Return a plain text table: column, depth, caller's id, meaning."""
        source = f"preset {self.preset}, " if self.preset else ""
        lines = [
            f"{source}dialect {self.dialect}, {self.num_layers} layers, layout {self.layout}",
            f"{'column':>6}  {'depth':>5}  {'id':>5}  meaning",
        ]
        for column, depth in enumerate(self.depths):
            name = str(self.caller_ids[column]) if column < len(self.caller_ids) else "added"
            lines.append(f"{column:>6}  {depth:>5}  {name:>5}  {self._meaning(depth)}")
        if self.num_layers not in self.depths:
            lines.append(f"depth {self.num_layers} is captured for the canary and not written")
        return "\n".join(lines)

    def _meaning(self, depth: int) -> str:
        if depth == self.num_layers:
            return f"after all {depth} layers, before the final norm"
        if depth == 0:
            return "embedding output"
        return f"after {depth} of {self.num_layers} layers"

    def to_json(self) -> dict[str, Any]:
        """Return the plan as a JSON object, as ``run.json`` keeps it."""
        return {
            "num_layers": self.num_layers,
            "dialect": self.dialect,
            "layout": self.layout,
            "preset": self.preset,
            "caller_ids": list(self.caller_ids),
            "depths": list(self.depths),
            "engine_depths": list(self.engine_depths),
            "columns": list(self.columns),
        }


def resolve(
    spec: str | Sequence[int],
    dialect: str,
    num_layers: int,
    *,
    layout: str = "training",
) -> LayerPlan:
    """Turn the caller's layer ids into a :class:`LayerPlan`.

    Args:
        spec: Comma separated ids such as ``"1,3,6"``, the ids themselves, or a preset's name.
        dialect: One of :data:`DIALECTS`. A preset ignores it: its project states its own.
        num_layers: Decoder layers of the model.
        layout: ``training`` keeps the caller's order of auxiliary depths and puts depth L last
            (added when left out); ``raw`` writes exactly what was asked.

    Raises:
        UsageError: The ids cannot be right; ``layers.*`` ids say how.
    """
    require(layout in LAYOUTS, "layers.unknown-layout", " or ".join(LAYOUTS), repr(layout))
    require(num_layers >= 1, "layers.no-layers", "a model with decoder layers", str(num_layers))
    speaker = dialect_named(dialect)
    preset = PRESETS.get(spec.strip()) if isinstance(spec, str) else None
    if preset is not None:
        speaker = DIALECTS[preset.dialect]
        ids = preset.ids(num_layers)
        _check_preset(preset, ids, num_layers)
    else:
        ids = _parse(spec)
    depths = tuple(to_depth(value, speaker.name, num_layers) for value in ids)
    repeated = sorted({value for value in ids if ids.count(value) > 1})
    require(
        not repeated,
        "layers.duplicate",
        "each layer id once",
        f"{', '.join(map(str, repeated))} more than once in {_join(ids)}",
    )
    if layout == "training":
        depths = _training_order(depths, ids, num_layers)
    engine_depths = tuple(sorted({*depths, num_layers}))
    return LayerPlan(
        num_layers=num_layers,
        dialect=speaker.name,
        layout=layout,
        caller_ids=ids,
        depths=depths,
        engine_depths=engine_depths,
        columns=tuple(engine_depths.index(depth) for depth in depths),
        preset=preset.name if preset else None,
    )


def _parse(spec: str | Sequence[int]) -> tuple[int, ...]:
    if not isinstance(spec, str):
        ids = tuple(_integer(value) for value in spec)
    elif not spec.strip():
        ids = ()
    elif re.fullmatch(r"[A-Za-z][\w.-]*", spec.strip()):
        raise UsageError(
            "layers.unknown-preset",
            expected="one of " + ", ".join(PRESETS) + ", or ids such as 1,3,6",
            found=repr(spec.strip()),
            where="--layers",
            next="give --layers a preset or comma separated ids",
        )
    else:
        ids = tuple(_integer(item.strip()) for item in spec.split(","))
    require(bool(ids), "layers.empty", "at least one layer id, or a preset", "none")
    return ids


def _integer(value: object) -> int:
    if isinstance(value, str):
        if re.fullmatch(r"-?[0-9]+", value):
            return int(value)
    elif not isinstance(value, bool) and hasattr(value, "__index__"):
        return operator.index(value)
    raise UsageError(
        "layers.not-an-integer",
        expected="whole numbers, such as 1,3,6",
        found=repr(value),
        where="--layers",
        next="correct the id",
    )


def _training_order(depths: tuple[int, ...], ids: tuple[int, ...], last: int) -> tuple[int, ...]:
    require(
        last not in depths[:-1],
        "layers.last-not-last",
        f"depth {last} as the last column: the trainer reads it as the verifier's",
        f"the order {_join(ids)} (depths {_join(depths)})",
        next="put it last, or use --layout raw",
    )
    auxiliary = tuple(depth for depth in depths if depth != last)
    require(
        bool(auxiliary),
        "layers.no-auxiliary",
        "at least one depth below L for the draft head to read",
        f"only depth {last}",
        next="add auxiliary layers, or use --layout raw",
    )
    return (*auxiliary, last)


def _check_preset(preset: Preset, ids: tuple[int, ...], num_layers: int) -> None:
    require(
        num_layers >= SMALLEST_PRESET_MODEL,
        "layers.preset-collides",
        f"at least {SMALLEST_PRESET_MODEL} layers for preset {preset.name} ({preset.formula})",
        f"{num_layers} layers, where its ids are {_join(ids)}",
        next=f"give ids from 0 to {num_layers} with --layers and --dialect vllm",
    )


def _join(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))
