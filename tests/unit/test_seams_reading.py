"""Contracts of reading a release: where a name ends, who owns it, how it is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.seams import Field, Kind
from tests.unit.releases import Files, entry

FUNCTION = "def f(a, b=1, *rest, c, d=None, **more): ...\n"
CONFIG = {
    "config/utils.py": """
        from pydantic.dataclasses import dataclass
        def config(cls=None, **kwargs):
            return dataclass(cls, **kwargs)
    """,
    "config/scheduler.py": """
        from dataclasses import InitVar, field
        from typing import ClassVar
        from pydantic import Field
        from .utils import config

        @config
        class SchedulerConfig:
            limit: ClassVar[int] = 3
            max_model_len: InitVar[int]
            is_encoder_decoder: "InitVar[bool]"
            share: float = Field(default=0.92, gt=0)
            blocks: int = Field(default=..., ge=1)
            names: list[str] = field(default_factory=list)
            seen: bool = field(default=False, init=False)
            def __post_init__(self, max_model_len, is_encoder_decoder): ...
    """,
    "config/__init__.py": "from .scheduler import SchedulerConfig\n",
}


# Names


def test_function_is_read_with_kinds_and_defaults_of_its_parameters(tmp_path: Path) -> None:
    found = entry(tmp_path, {"m.py": FUNCTION}, Kind.FUNCTION, "vllm.m:f")
    assert (found.kind, found.where) == ("function", "vllm.m")
    assert found.signature == "(a, b=1, *rest, c, d=None, **more)"


def test_positional_only_parameters_stay_so(tmp_path: Path) -> None:
    text = "class C:\n    def m(self, a, /, b, *, c): ...\n"
    found = entry(tmp_path, {"m.py": text}, Kind.METHOD, "vllm.m:C.m")
    assert found.signature == "(a, /, b, *, c)"


@pytest.mark.parametrize(
    "hub",
    [
        "from vllm.deep.real import f\n",
        "from .deep.real import f\n",
        "from .deep import real\nf = real_f = None\nfrom .deep.real import f\n",
        "from vllm.deep.real import g as f\n",
        "from vllm.deep.real import *\n",
        "try:\n    from vllm.gone import f\n"
        "except ImportError:\n    from vllm.deep.real import f\n",
        "try:\n    from vllm.deep.real import f\nexcept ImportError:\n    f = None\n",
        "import sys\nif sys.platform == 'linux':\n    from vllm.deep.real import f\n"
        "else:\n    f = None\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from vllm.deep.real import f\n"
        "def __getattr__(name):\n    if name == 'f': ...\n",
        "from typing import TYPE_CHECKING\n"
        "if not TYPE_CHECKING:\n    from vllm.deep.real import f\nelse:\n    f = object\n",
    ],
    ids=[
        "absolute", "relative", "rebound", "renamed", "star", "fallback", "first-choice",
        "condition", "lazy", "not-type-checking",
    ],
)  # fmt: skip
def test_re_export_is_followed_to_the_definition(tmp_path: Path, hub: str) -> None:
    real = FUNCTION + "g = f\n"
    files = {"hub.py": hub, "deep/real.py": real}
    found = entry(tmp_path, files, Kind.FUNCTION, "vllm.hub:f")
    assert (found.kind, found.where) == ("function", "vllm.deep.real")


def test_name_for_type_checkers_alone_cannot_be_imported(tmp_path: Path) -> None:
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from vllm.real import f\n"
    files = {"hub.py": text, "real.py": FUNCTION}
    assert entry(tmp_path, files, Kind.FUNCTION, "vllm.hub:f").missing


def test_lazy_name_is_there_only_while_the_module_looks_it_up(tmp_path: Path) -> None:
    text = """
        from typing import TYPE_CHECKING
        TABLE = {"f": ".real:f"}
        if TYPE_CHECKING:
            from vllm.real import f, g
        def __getattr__(name):
            return TABLE[name]
    """
    files = {"hub.py": text, "real.py": FUNCTION + "g = f\n"}
    assert entry(tmp_path, files, Kind.FUNCTION, "vllm.hub:f").where == "vllm.real"
    assert entry(tmp_path, files, Kind.FUNCTION, "vllm.hub:g").missing


def test_name_imported_in_a_circle_is_missing(tmp_path: Path) -> None:
    files = {"a.py": "from vllm.b import f\n", "b.py": "from vllm.a import f\n"}
    assert entry(tmp_path, files, Kind.FUNCTION, "vllm.a:f").missing


def test_last_definition_wins_and_overloads_do_not_count(tmp_path: Path) -> None:
    text = """
        from typing import overload
        @overload
        def f(a: int) -> int: ...
        @overload
        def f(a: str, b: str) -> str: ...
        def f(a, b=None, *, c=0): ...
    """
    found = entry(tmp_path, {"m.py": text}, Kind.FUNCTION, "vllm.m:f")
    assert found.signature == "(a, b=None, *, c=0)"


def test_decorated_function_keeps_its_own_parameters(tmp_path: Path) -> None:
    text = """
        import functools
        from contextlib import contextmanager
        @contextmanager
        @functools.lru_cache(maxsize=1)
        def f(a, b=2): ...
    """
    assert entry(tmp_path, {"m.py": text}, Kind.FUNCTION, "vllm.m:f").signature == "(a, b=2)"


def test_newest_place_describes_a_seam_and_all_places_are_told(tmp_path: Path) -> None:
    files = {"old.py": "def f(a): ...\n", "new.py": "def f(a, b): ...\n"}
    found = entry(tmp_path, files, Kind.FUNCTION, "vllm.new:f", "vllm.old:f", "vllm.gone:f")
    assert found.signature == "(a, b)"
    assert found.paths == ("vllm.new:f", "vllm.old:f")


@pytest.mark.parametrize(
    ("path", "deepest"),
    [
        ("vllm.a.b:f", "vllm"),
        ("vllm.m:f", "vllm.m"),
        ("vllm.m:C.x", "vllm.m:C"),
        ("vllm.m:D.x", "vllm.m"),
    ],
)
def test_missing_seam_tells_what_of_its_path_is_there(
    tmp_path: Path, path: str, deepest: str
) -> None:
    files = {"m.py": "class C: ...\n"}
    found = entry(tmp_path, files, Kind.METHOD, path)
    assert (found.missing, found.where) == (True, deepest)


def test_module_another_packages_name_and_variable_are_told_apart(tmp_path: Path) -> None:
    files = {"m.py": "from torch import Tensor\nimport numpy as np\nLIMIT = 3\n"}
    kinds = {
        path: entry(tmp_path, files, Kind.ATTRIBUTE, path).kind
        for path in ("vllm.m", "vllm.m:Tensor", "vllm.m:np", "vllm.m:LIMIT", "vllm:m")
    }
    assert list(kinds.values()) == ["module", "external", "external", "variable", "module"]
    assert entry(tmp_path, files, Kind.ATTRIBUTE, "vllm.m:LIMIT").default == "3"


def test_module_that_cannot_be_parsed_is_missing_and_stops_nothing(tmp_path: Path) -> None:
    assert entry(tmp_path, {"m.py": "def f(:\n"}, Kind.FUNCTION, "vllm.m:f").missing


def test_environment_variable_is_a_key_of_the_table(tmp_path: Path) -> None:
    text = """
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            VLLM_A: int = 3
            VLLM_GONE: int = 4
        environment_variables = {"VLLM_A": lambda: 3}
        def __getattr__(name): ...
    """
    found = entry(tmp_path, {"envs.py": text}, Kind.ENV, "vllm.envs:VLLM_A")
    assert (found.kind, found.default) == ("env", "3")
    assert entry(tmp_path, {"envs.py": text}, Kind.ENV, "vllm.envs:VLLM_GONE").missing


# Members and owners


INHERITED: Files = {
    "base.py": """
        from abc import ABC, abstractmethod
        class Root(ABC):
            def m(self, root): ...
            def only(self, a): ...
        class Left(Root): ...
        class Right(Root):
            def m(self, right): ...
    """,
    "worker.py": """
        from vllm import base
        from vllm.base import Left
        class Both(Left, base.Right):
            @classmethod
            def make(cls, a): ...
            @staticmethod
            def plain(a): ...
            @property
            def size(self): ...
            @size.setter
            def size(self, value): ...
            def __init__(self, a):
                self.first: int = 1
                self.second, self.third = 1, 2
                self.again = "init"
            def load(self):
                self.again = "load"
                with open("x") as self.handle:
                    self.late = self.elsewhere.inner = 1
    """,
}


@pytest.mark.parametrize(
    ("member", "owner", "signature"),
    [
        ("m", "Right", "(right)"),
        ("only", "Root", "(a)"),
        ("make", "Both", "(a)"),
        ("plain", "Both", "(a)"),
    ],
)
def test_method_is_found_where_python_would_find_it(
    tmp_path: Path, member: str, owner: str, signature: str
) -> None:
    found = entry(tmp_path, INHERITED, Kind.METHOD, f"vllm.worker:Both.{member}")
    assert (found.kind, found.owner, found.signature) == ("method", owner, signature)
    assert found.where == ("vllm.worker" if owner == "Both" else "vllm.base")


def test_property_is_no_method(tmp_path: Path) -> None:
    assert entry(tmp_path, INHERITED, Kind.ATTRIBUTE, "vllm.worker:Both.size").kind == "property"


@pytest.mark.parametrize("name", ["first", "second", "third", "again", "handle", "late"])
def test_instance_attribute_is_found_wherever_it_is_assigned(tmp_path: Path, name: str) -> None:
    found = entry(tmp_path, INHERITED, Kind.ATTRIBUTE, f"vllm.worker:Both.{name}")
    assert (found.kind, found.owner) == ("attribute", "Both")


@pytest.mark.parametrize("name", ["inner", "elsewhere", "value"])
def test_what_is_only_read_or_set_elsewhere_is_no_attribute(tmp_path: Path, name: str) -> None:
    assert entry(tmp_path, INHERITED, Kind.ATTRIBUTE, f"vllm.worker:Both.{name}").missing


def test_class_tells_its_bases_in_resolution_order(tmp_path: Path) -> None:
    found = entry(tmp_path, INHERITED, Kind.CLASS, "vllm.worker:Both")
    assert found.bases == ("Left", "Right", "Root")
    assert found.signature == "(a)"


def test_class_that_is_its_own_base_is_read(tmp_path: Path) -> None:
    files = {"m.py": "class A(B):\n    def m(self): ...\nclass B(A): ...\n"}
    assert entry(tmp_path, files, Kind.METHOD, "vllm.m:A.m").owner == "A"


# Constructors and fields


def test_config_class_is_called_with_its_fields(tmp_path: Path) -> None:
    found = entry(tmp_path, CONFIG, Kind.CLASS, "vllm.config:SchedulerConfig")
    assert found.where == "vllm.config.scheduler"
    assert found.signature == (
        "(max_model_len, is_encoder_decoder, share=0.92, *, blocks, names=list())"
    )
    assert found.field("is_encoder_decoder") == Field("is_encoder_decoder", None, "initvar")
    assert found.field("seen") == Field("seen", "False", "noinit")
    assert found.field("limit") is None


def test_field_is_a_seam_of_its_own(tmp_path: Path) -> None:
    found = entry(tmp_path, CONFIG, Kind.FIELD, "vllm.config:SchedulerConfig.share")
    assert (found.kind, found.default, found.owner) == ("field", "0.92", "SchedulerConfig")
    initvar = entry(tmp_path, CONFIG, Kind.FIELD, "vllm.config:SchedulerConfig.max_model_len")
    assert (initvar.kind, initvar.default) == ("initvar", None)


@pytest.mark.parametrize(
    ("text", "signature"),
    [
        ("@dataclass\nclass C:\n    a: int\n    b: int = 2\n", "(a, b=2)"),
        ("@dataclass(kw_only=True)\nclass C:\n    a: int\n    b: int = 2\n", "(*, a, b=2)"),
        ("@dataclass\nclass C:\n    a: int\n    _: KW_ONLY\n    b: int\n", "(a, *, b)"),
        ("@dataclass\nclass C:\n    a: int\n    def __init__(self, own): ...\n", "(own)"),
        ("@dataclass(init=False)\nclass C:\n    a: int\n", "()"),
        ("class B:\n    def __init__(self, own): ...\n"
         "@dataclass\nclass C(B):\n    a: int\n", "(a)"),
        ("@dataclass\nclass B:\n    a: int\n    b: int = 1\n@dataclass\nclass C(B):\n"
         "    a: int = 0\n", "(a=0, b=1)"),
        ("@dataclass\nclass B:\n    a: int\nclass C(B):\n    x: int = 0\n", "(a)"),
        ("class C(msgspec.Struct, kw_only=True):\n    a: int\n", "(*, a)"),
        ("class C(Struct):\n    a: int\n    b: int = 0\n", "(a, b=0)"),
        ("class C(NamedTuple):\n    a: int\n    b: int = 0\n", "(a, b=0)"),
        ("class C(BaseModel):\n    a: int\n    b: int = 0\n", "(*, a, b=0)"),
        ("class C:\n    a: int\n", "()"),
        ("class C(Enum):\n    A = 1\n", "(value)"),
        ("class C(torch.nn.Module):\n    a: int\n", None),
        ("class C:\n    def __new__(cls, a): ...\n", None),
    ],
)  # fmt: skip
def test_constructor_is_the_one_that_python_would_make(
    tmp_path: Path, text: str, signature: str | None
) -> None:
    head = (
        "import msgspec\nimport torch\nfrom dataclasses import KW_ONLY, dataclass\n"
        "from enum import Enum\nfrom msgspec import Struct\nfrom pydantic import BaseModel\n"
        "from typing import NamedTuple\n"
    )
    assert entry(tmp_path, {"m.py": head + text}, Kind.CLASS, "vllm.m:C").signature == signature


def test_enum_tells_its_members(tmp_path: Path) -> None:
    text = "import enum\nclass Status(enum.IntEnum):\n    WAITING = enum.auto()\n    DONE = 2\n"
    found = entry(tmp_path, {"m.py": text}, Kind.CLASS, "vllm.m:Status")
    assert [field.name for field in found.fields] == ["WAITING", "DONE"]
    assert entry(tmp_path, {"m.py": text}, Kind.FIELD, "vllm.m:Status.DONE").kind == "member"


def test_spelling_of_the_config_decorator_does_not_matter(tmp_path: Path) -> None:
    plain = entry(tmp_path / "a", CONFIG, Kind.CLASS, "vllm.config:SchedulerConfig")
    text = CONFIG["config/scheduler.py"].replace("@config", "@config(config={'extra': 'forbid'})")
    called = {**CONFIG, "config/scheduler.py": text}
    assert entry(tmp_path / "b", called, Kind.CLASS, "vllm.config:SchedulerConfig") == plain
    stacked = {
        **CONFIG,
        "config/scheduler.py": text.replace("@config(", "@dataclass\n        @config("),
    }
    assert entry(tmp_path / "c", stacked, Kind.CLASS, "vllm.config:SchedulerConfig") == plain
