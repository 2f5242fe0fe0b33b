"""What an engine was loaded from, and how that differs from what a session would load."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from harness import models
from harness.extraction.plan import EnginePlan
from harness.lease import files

Table = Mapping[str, str]

_STEERING = ("VLLM_", "CUDA_", "NCCL_", "TORCH", "PYTORCH_", "OMP_", "MKL_", "KMP_")
_ALSO = frozenset(("HARNESS_PRELOAD", "LD_PRELOAD", "LD_LIBRARY_PATH"))
_SECRET = ("TOKEN", "KEY", "SECRET", "PASSWORD")

_EXPECT = "expect."

ASKED: Final = "asked"
VALUES: Final = (ASKED, "recipe", "environment", "engine")
"""Parts whose values say something to a reader; of the others only the name does."""


@dataclass(frozen=True)
class Difference:
    """One thing in which a lease is not what a session asks for.

    Attributes:
        part: ``asked``, ``recipe``, ``environment``, ``engine``, ``model``, ``patches``,
            ``code`` or ``engine files``.
        name: Which thing.
        lease: Its value in the lease; None where it has none.
        here: Its value in this session; None where it has none.
    """

    part: str
    name: str
    lease: str | None
    here: str | None

    @property
    def in_engine(self) -> bool:
        """Whether it lies in a file that the engine reads during its load, at no certain time."""
        return self.part in ("code", "model", "engine files")

    def __str__(self) -> str:
        if self.part in VALUES:
            return f"{self.name}: lease {_said(self.lease)}, asked {_said(self.here)}"
        if self.lease is None:
            return f"{self.name} is new since the load"
        return f"{self.name} is gone" if self.here is None else f"{self.name} differs"


@dataclass(frozen=True)
class Identity:
    """What an engine is loaded from.

    Attributes:
        parts: Part -> name -> value as text; parts in the order in which they are told.
    """

    parts: Mapping[str, Table]

    def differences(self, here: Identity) -> list[Difference]:
        """Return how ``here`` differs, the user's own words first."""
        found = list(self._differences(here))
        told = any(one.part == "recipe" and not one.name.startswith(_EXPECT) for one in found)
        # What an engine must have resolved follows from the settings.
        return [one for one in found if not (told and one.name.startswith(_EXPECT))]

    def _differences(self, here: Identity) -> Iterator[Difference]:
        for part in dict.fromkeys([*self.parts, *here.parts]):
            lease, now = self.parts.get(part, {}), here.parts.get(part, {})
            for name in dict.fromkeys([*lease, *now]):
                if lease.get(name) != now.get(name):
                    yield Difference(part, name, lease.get(name), now.get(name))

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {part: dict(table) for part, table in self.parts.items()}

    @classmethod
    def from_json(cls, body: Any) -> Identity:
        """Read what :meth:`to_json` wrote.

        Raises:
            ValueError: It is something else.
        """
        if not isinstance(body, dict) or not all(isinstance(t, dict) for t in body.values()):
            raise ValueError("no table of tables")
        return cls(body)


def identity_of(plan: EnginePlan, environment: Mapping[str, str] | None = None) -> Identity:
    """Say what an engine of this plan is loaded from, as things are on disk now.

    Args:
        plan: How it is loaded, with the lease's spool.
        environment: Of the process that starts it; by default this one's.

    Raises:
        UsageError, CheckFailed: The checkpoint cannot be read.
    """
    options, spec = plan.options, plan.session
    return Identity(
        {
            ASKED: {
                "model": str(plan.recipe.engine_args["model"]),
                "layers": _layers(plan),
                "capture": spec.name,
                "dtype": spec.dtype,
                "tensor_parallel_size": str(options.tensor_parallel_size),
                "max_model_len": str(spec.max_prompt_tokens + 1),
            },
            "model": {
                "the checkpoint's fingerprint": models.fingerprint(options.model),
                **files.table(Path(os.path.realpath(options.model)), suffixes=()),
            },
            "patches": files.patch_digests(),
            "code": files.code_digests(),
            "engine": {"interpreter": str(options.python), **_versions(plan)},
            "engine files": files.table(plan.seen.package),
            "recipe": _recipe(plan),
            "environment": _environment(plan, os.environ if environment is None else environment),
        }
    )


def _layers(plan: EnginePlan) -> str:
    if plan.layers is None:
        return "none"
    columns = ",".join(map(str, plan.layers.depths))
    return f"depths {columns}"


def _versions(plan: EnginePlan) -> Table:
    engine = plan.seen.engine
    return {
        **{name: str(version) for name, version in sorted(engine.versions.items())},
        engine.dist: str(engine.vllm),
        "python": plan.seen.python,
        "device": plan.seen.platform.device,
    }


def _recipe(plan: EnginePlan) -> dict[str, str]:
    spec, layers = plan.session, plan.layers
    body = {
        **spec.engine_args,
        "expect": dict(spec.expect),
        "writer_threads": spec.writer_threads,
        "preload": list(plan.recipe.preload),
        "columns": list(layers.columns) if layers else [],
    }
    # The words of `asked` come first and say the same.
    told = ("model", "dtype", "max_model_len", "tensor_parallel_size")
    return {name: text for name, text in _leaves("", body) if name not in told}


def _leaves(prefix: str, body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in body.items():
        if isinstance(value, dict) and value:
            yield from _leaves(f"{prefix}{key}.", value)
        else:
            yield f"{prefix}{key}", json.dumps(value, default=str)


def _environment(plan: EnginePlan, source: Mapping[str, str]) -> Table:
    ours = {name: value for name, value in source.items() if _steers(name)}
    return dict(sorted({**ours, **plan.recipe.env}.items()))


def _steers(name: str) -> bool:
    secret = any(word in name.upper() for word in _SECRET)
    return name in _ALSO or (name.startswith(_STEERING) and not secret)


def _said(value: str | None) -> str:
    return "none" if value is None else value
