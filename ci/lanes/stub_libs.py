"""Stand-ins for shared libraries that a program links against but never has to call.

The loader asks three things of a library: its file name, the symbol versions, and an address
for each symbol. A stand-in of a few kB, written from what the asking libraries say about it,
gives all three; each of its functions returns one fixed number.

Needs a C compiler and ``readelf`` (binutils, which every C compiler on Linux brings).
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_NEEDED = re.compile(r"\(NEEDED\).*\[(?P<name>[^\]]+)\]")
_VERSION_FILE = re.compile(r"Version: \d+\s+File: (?P<name>\S+)\s+Cnt:")
_VERSION_NAME = re.compile(r"\sName: (?P<name>\S+)\s+Flags:")
_SYMBOL = re.compile(
    r"\s*\d+: [0-9a-f]+\s+\S+\s+\S+\s+(?P<bind>\S+)\s+\S+\s+(?P<section>\S+) (?P<name>[^\s@]+)"
    r"(?:@+(?P<version>[^\s@]+))?"
)
# A caller prints what these return, so a number would be read as an address.
_RETURNS_TEXT = re.compile(r"Get\w*(String|Name)$|^ncclGetLastError$")


@dataclass(frozen=True)
class Reading:
    """What one shared library asks of the loader, and what it offers.

    Attributes:
        needed: Sonames of the libraries it names.
        versions: For each library it asks for symbol versions, those versions.
        wanted: Its undefined symbols as (name, version), version "" when it asks for none.
        defined: Names that it defines itself.
    """

    needed: frozenset[str]
    versions: Mapping[str, frozenset[str]]
    wanted: frozenset[tuple[str, str]]
    defined: frozenset[str]


@dataclass(frozen=True)
class Stub:
    """One stand-in: its soname, the symbols under each version, and what they return."""

    soname: str
    symbols: Mapping[str, frozenset[str]]
    returns: int

    def source(self) -> str:
        """Return the C source: one function a symbol."""
        lines = [f'static const char text[] = "{self.soname} is a stand-in";']
        for name in sorted(frozenset().union(*self.symbols.values())):
            if _RETURNS_TEXT.search(name):
                lines.append(f"const char *{name}(void) {{ return text; }}")
            else:
                lines.append(f"long {name}(void) {{ return {self.returns}; }}")
        return "\n".join([*lines, ""])

    def version_script(self) -> str:
        """Return the linker's version script, empty when no version is asked for."""
        return "".join(
            f"{version} {{ {self._exports(names)}}};\n"
            for version, names in sorted(self.symbols.items())
            if version
        )

    @staticmethod
    def _exports(names: frozenset[str]) -> str:
        return f"global: {' '.join(f'{name};' for name in sorted(names))} " if names else ""


def parse(text: str) -> Reading:
    """Parse what ``readelf -W -d -V --dyn-syms`` prints for one library."""
    needed: set[str] = set()
    versions: dict[str, set[str]] = {}
    wanted: set[tuple[str, str]] = set()
    defined: set[str] = set()
    library = ""
    for line in text.splitlines():
        if found := _SYMBOL.match(line):
            if found["section"] != "UND":
                defined.add(found["name"])
            elif found["bind"] == "GLOBAL":
                wanted.add((found["name"], found["version"] or ""))
        elif found := _NEEDED.search(line):
            needed.add(found["name"])
        elif found := _VERSION_FILE.search(line):
            library = found["name"]
        elif library and (found := _VERSION_NAME.search(line)):
            versions.setdefault(library, set()).add(found["name"])
    return Reading(
        needed=frozenset(needed),
        versions={name: frozenset(found) for name, found in versions.items()},
        wanted=frozenset(wanted),
        defined=frozenset(defined),
    )


def read(path: Path) -> Reading:
    """Read one library with ``readelf``.

    Raises:
        OSError: There is no ``readelf``.
        subprocess.CalledProcessError: ``readelf`` does not take the file.
    """
    command = ["readelf", "-W", "-d", "-V", "--dyn-syms", str(path)]
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return parse(done.stdout)


def plan(readings: Iterable[Reading], missing: Iterable[str], returns: int) -> tuple[Stub, ...]:
    """Decide which symbols each of the ``missing`` libraries must define.

    A versioned symbol belongs to the library that is asked for its version. One without a
    version belongs to the library whose name it begins with (``ncclSend`` to
    ``libnccl.so.2``).
    """
    readings, missing = tuple(readings), frozenset(missing)
    owners: dict[str, str] = {}
    symbols: dict[str, dict[str, set[str]]] = {name: {} for name in missing}
    for one in readings:
        for library in missing & one.versions.keys():
            for version in one.versions[library]:
                owners[version] = library
                symbols[library].setdefault(version, set())
    defined = frozenset().union(*(one.defined for one in readings))
    for name, version in frozenset().union(*(one.wanted for one in readings)):
        owner = owners.get(version) if version else _owner_by_name(name, missing)
        if owner and name not in defined:
            symbols[owner].setdefault(version, set()).add(name)
    return tuple(
        Stub(library, {version: frozenset(names) for version, names in found.items()}, returns)
        for library, found in sorted(symbols.items())
    )


def _owner_by_name(symbol: str, libraries: Iterable[str]) -> str | None:
    stems = {name: name.removeprefix("lib").split(".")[0].lower() for name in libraries}
    fitting = [name for name, stem in stems.items() if symbol.lower().startswith(stem)]
    return max(fitting, key=lambda name: len(stems[name]), default=None)


def compile_stub(stub: Stub, folder: Path, compiler: str) -> Path:
    """Compile one stand-in into ``folder`` and return its path.

    Raises:
        subprocess.CalledProcessError: The compiler refused; its words are in ``stderr``.
    """
    target = folder / stub.soname
    with tempfile.TemporaryDirectory() as scratch:
        source, script = Path(scratch, "stub.c"), Path(scratch, "stub.map")
        source.write_text(stub.source())
        script.write_text(stub.version_script())
        options = ["-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{stub.soname}"]
        if stub.version_script():
            options.append(f"-Wl,--version-script={script}")
        command = [compiler, *options, "-o", str(target), str(source)]
        subprocess.run(command, capture_output=True, text=True, check=True)
    return target
