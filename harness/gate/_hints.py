"""What a fix must do: where a name went, and what vLLM's own callers pass for a new argument.

Asked only where something is missing, so reading every file of a release is paid for once.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from harness.seams import Finding, Seam, Source

_MOST = 3


@dataclass
class Hints:
    """Searches one release for names.

    Attributes:
        source: Its files; None where only a recorded surface is at hand.
        texts: Path -> text of the files to search, where they were read already; None: all.
    """

    source: Source | None
    texts: dict[str, str] | None = field(default=None, repr=False)
    _seen: dict[str, str | None] = field(default_factory=dict, repr=False)

    def of_name(self, path: str) -> str:
        """Say where a name went: ``module:Name`` or ``module:Class.member``."""
        module, _, dotted = path.partition(":")
        owner, _, name = dotted.rpartition(".")
        if self.source is None:
            return f"{dotted or module} is gone; give the release's wheel to see where it went"
        if not dotted:
            return self._module_went(module)
        return self._member_went(module, owner, name) if owner else self._top_went(module, name)

    def of_argument(self, seam: Seam, finding: Finding) -> str:
        """Say what a call must pass, leave out or rename."""
        name = seam.paths[0].rpartition(":")[2].rpartition(".")[2]
        if finding.kind == "needs-argument":
            passed = self._passed(name, finding.subject)
            told = f"; vLLM itself passes {passed}" if passed else ""
            return f"pass {finding.subject}= to {name}{told}"
        if finding.kind == "unknown-keyword":
            taken = _arguments(finding.found)
            near = difflib.get_close_matches(finding.subject, taken, n=1, cutoff=0.75)
            told = f"; it takes {near[0]}" if near else ""
            return f"leave {finding.subject} out of the call of {name}{told}"
        return f"call {name} as it is now: {finding.found or 'its signature is not told'}"

    def _module_went(self, module: str) -> str:
        last = module.rpartition(".")[2]
        found = [m for m in map(_module, self._paths()) if m.rpartition(".")[2] == last]
        return _went(found) or f"no module {last} any more"

    def _top_went(self, module: str, name: str) -> str:
        pattern = re.compile(rf"^(?:class|(?:async )?def) {re.escape(name)}\b|^{name}\s*[:=]", re.M)
        found = [
            _module(path) for path, text in self._each() if name in text and pattern.search(text)
        ]
        if found:
            return _went([f"{one}:{name}" for one in _nearest(module, found)])
        text = self._text(module)
        names = re.findall(r"^(?:class|(?:async )?def) (\w+)", text, re.M)
        return _renamed(name, names) or f"no {name} anywhere in this release"

    def _member_went(self, module: str, owner: str, name: str) -> str:
        pattern = re.compile(rf"^class {re.escape(owner)}\b", re.M)
        where, text = module, self._text(module)
        if pattern.search(text) is None:
            # It went elsewhere, which takes a look at every file.
            holders = [
                _module(path)
                for path, text in self._each()
                if owner in text and pattern.search(text)
            ]
            if not holders:
                return self._top_went(module, owner)
            where = _nearest(module, holders)[0]
            text = self._text(where)
        members = sorted(set(_members(text, owner)))
        return _renamed(name, members) or f"{owner} in {where} has no {name} any more"

    def _passed(self, callee: str, argument: str) -> str:
        if self.source is None:
            return ""
        for _, text in self._each():
            if f"{callee}(" not in text or f"{argument}=" not in text:
                continue
            for node in _calls(text, callee):
                for keyword in node.keywords:
                    if keyword.arg == argument:
                        return f"{argument}={ast.unparse(keyword.value)}"
        return ""

    def _text(self, module: str) -> str:
        """Return a module's source; empty where there is none."""
        base = module.replace(".", "/")
        files = (self._read(f"{base}/__init__.py"), self._read(f"{base}.py"))
        return next((text for text in files if text is not None), "")

    def _read(self, path: str) -> str | None:
        if self.texts is not None:
            return self.texts.get(path)
        if path not in self._seen:
            assert self.source is not None
            self._seen[path] = self.source.read(path)
        return self._seen[path]

    def _paths(self) -> Iterable[str]:
        assert self.source is not None
        return self.source.paths() if self.texts is None else self.texts

    def _each(self) -> Iterator[tuple[str, str]]:
        """Yield each file with its text; files are read as far as somebody looks."""
        for path in self._paths():
            text = self._read(path)
            if text is not None:
                yield path, text


def _calls(text: str, callee: str) -> Iterator[ast.Call]:
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else ""
            name = function.id if isinstance(function, ast.Name) else name
            if name == callee:
                yield node


def _members(text: str, owner: str) -> Iterator[str]:
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == owner:
            for part in ast.walk(node):
                if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield part.name
                elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                    yield part.target.id
                elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                    yield part.id
                elif isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
                    yield part.attr


def _arguments(signature: str) -> list[str]:
    return re.findall(r"(?:^\(|, )\**(\w+)", signature)


def _renamed(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, [one for one in names if one != name], n=1, cutoff=0.6)
    return f"perhaps {near[0]} now" if near else ""


def _went(places: list[str]) -> str:
    return f"now in {', '.join(places[:_MOST])}" if places else ""


def _nearest(module: str, found: list[str]) -> list[str]:
    def shared(other: str) -> int:
        parts = zip(module.split("."), other.split("."), strict=False)
        return next((n for n, (a, b) in enumerate(parts) if a != b), 99)

    return sorted(set(found), key=lambda other: (-shared(other), len(other), other))


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
