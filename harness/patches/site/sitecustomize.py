"""Python imports this at the start of every process of ``harness patches run``.

It only watches for a few imports: nothing of the harness is imported before one comes. What the
environment's own ``sitecustomize`` does, it does too.
"""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120


class _Loader:
    """Loads as the module's own loader does, then has the module patched."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        try:
            from harness.patches.hook import imported
        except ImportError as error:
            where = getattr(sys.modules.get("harness"), "__path__", None)
            raise ImportError(
                "harness patches: cannot import harness.patches.hook; the harness that Python "
                f"finds is {list(where) if where else 'no package'}. A module of the script's "
                "own that is called harness stands before it: give that another name"
            ) from error

        imported(module.__name__)


class _Finder:
    """First in line for the modules to be patched; asks the others where they are."""

    def __init__(self, names: "list[str]") -> None:
        self._names = set(names)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self._names:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader)
                return spec
        return None


def _tell() -> None:
    """Let the command know that this file was read: ``python -I`` and ``-E`` pass it by."""
    try:
        with open(os.environ["HARNESS_PATCHES_STARTED"], "w"):  # noqa: PTH123
            pass
    except (KeyError, OSError):
        pass  # the command has ended; what it started may live on


def _run_own() -> None:
    """Run the sitecustomize that this file stands before."""
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]  # noqa: PTH100
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_tell()
sys.meta_path.insert(0, _Finder(os.environ.get("HARNESS_PATCHES_MODULES", "").split()))
_run_own()
