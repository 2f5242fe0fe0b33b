"""The environment that patches are meant for: its vLLM's surface and its speculators."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.errors import NotComparable
from harness.patches._modules import EXTENSION, GENERATOR
from harness.patches._patch import Patch
from harness.patches._state import State, broken
from harness.seams import Surface, read_surface, recorded

SPECULATORS = "0.3."
"""The releases whose generator the patches are written for."""

_ASK = """
import importlib.metadata as m, importlib.util as u, json
try: version = m.version("speculators")
except m.PackageNotFoundError: version = None
spec = u.find_spec("speculators")
print(json.dumps({"version": version, "roots": list(spec.submodule_search_locations or ()) if spec
    else []}))
"""


@dataclass(frozen=True)
class Environment:
    """What patches are judged against.

    Attributes:
        surface: Of its vLLM.
        speculators: Version, or None where it is not known or not there.
        names: Module -> the names in it and the methods of its classes; empty: not looked at.
    """

    surface: Surface
    speculators: str | None
    names: Mapping[str, frozenset[str]]

    def state(self, patch: Patch) -> State:
        """Return what a patch is to this environment."""
        names = self.names.get(patch.module)
        if names is not None:
            for change in patch.changes:
                if not _has(names, change.name):
                    return broken(f"speculators {self.speculators} has no {change.name}")
        return patch.state(self.surface)


def of_release(release: str) -> Environment:
    """Return a recorded vLLM release, with the speculators that the patches are written for.

    Raises:
        NotComparable: ``seams.no-record``.
    """
    return Environment(recorded(release), None, {})


def of_python(python: str | Path) -> Environment:
    """Read an interpreter's vLLM and speculators; neither is imported.

    Raises:
        UsageError, NotComparable: As ``read_surface``; ``patches.other-speculators``.
    """
    # Not resolved: the link in an environment's bin folder is what selects the environment.
    program = Path(shutil.which(python) or python).absolute()
    surface = read_surface(str(program))
    said = subprocess.run(
        [str(program), "-c", _ASK],
        cwd=os.sep,
        capture_output=True,
        text=True,
        timeout=30,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    body = json.loads(said.stdout.splitlines()[-1]) if said.returncode == 0 else {"roots": []}
    version = body.get("version")
    if not str(version).startswith(SPECULATORS):
        raise NotComparable(
            "patches.other-speculators",
            expected=f"speculators {SPECULATORS}x, whose generator the patches are written for",
            found=f"speculators {version}" if version else "no speculators",
            where=str(python),
            next="harness patches check --release RELEASE; newer speculators need harness extract",
        )
    files = {module: _file(body["roots"], module) for module in (GENERATOR, EXTENSION)}
    return Environment(surface, version, {module: _names(file) for module, file in files.items()})


def _file(roots: list[str], module: str) -> Path:
    return Path(roots[0], *module.split(".")[1:]).with_suffix(".py")


def _names(file: Path) -> frozenset[str]:
    """Return the top-level names of a file and the methods of its classes."""
    found: set[str] = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body if file.is_file() else ():
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            members = [part.name for part in node.body if isinstance(part, ast.FunctionDef)]
            found |= {f"{node.name}:", *(f"{node.name}.{member}" for member in members)}
    return frozenset(found)


def _has(names: frozenset[str], name: str) -> bool:
    """Whether a name is there; methods of an imported class are vLLM's affair."""
    first = name.partition(".")[0]
    return name in names or (first in names and f"{first}:" not in names)
