"""Contracts of binding: what breaks is found at its seam, what does not break is not."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import get_args

import pytest

from harness.errors import NotComparable
from harness.seams import Call, Consumer, Finding, Kind, Seam, Surface, Use, bind, bind_call
from harness.seams.binding import FindingKind
from tests.unit.releases import findings, relied, surface

SCHEDULER = """
    class Interface:
        def add(self, request): ...
        def sample(self, grammar): ...
    class Scheduler(Interface):
        def __init__(self, vllm_config, kv_cache_config, log_stats=False):
            self.running = []
        def add(self, request): ...
        def sample(self, grammar): ...
    def unify(specs): ...
"""
REQUEST = """
    import enum
    from dataclasses import dataclass
    @dataclass
    class Request:
        request_id: str
        prompt: list
        eos: int = 0
    class Status(enum.IntEnum):
        ABORTED = 1
"""
FILES = {"sched.py": SCHEDULER, "request.py": REQUEST}
INIT = relied(Kind.CLASS, "vllm.sched:Scheduler", Call(0, ("vllm_config", "kv_cache_config")))
ADD = relied(Kind.METHOD, "vllm.sched:Scheduler.add", Call(1))
SAMPLE = relied(Kind.METHOD, "vllm.sched:Scheduler.sample", Call(1), owners=("Scheduler",))
UNIFY = relied(Kind.FUNCTION, "vllm.sched:unify", Call(1))
RUNNING = relied(Kind.ATTRIBUTE, "vllm.sched:Scheduler.running")
MAKE = relied(Kind.CLASS, "vllm.request:Request", Call(0, ("request_id", "prompt", "eos")))
PROMPT = relied(Kind.FIELD, "vllm.request:Request.prompt")
ABORTED = relied(Kind.FIELD, "vllm.request:Status.ABORTED")
ALL = [INIT, ADD, SAMPLE, UNIFY, RUNNING, MAKE, PROMPT, ABORTED]

BREAKS = [
    (INIT, "kv_cache_config, log", "cache_config, log", ("unknown-keyword", "kv_cache_config")),
    (INIT, "kv_cache_config, log", "kv_cache_config, block_size, log",
     ("needs-argument", "block_size")),
    (INIT, "log_stats=False", "log_stats", ("needs-argument", "log_stats")),
    (INIT, "kv_cache_config, log", "kv_cache_config, *, block_size, log",
     ("needs-argument", "block_size")),
    (INIT, "self, vllm_config", "self, vllm_config, /", ("unknown-keyword", "vllm_config")),
    (INIT, "class Scheduler(", "class Planner(", ("missing", "vllm.sched:Scheduler")),
    (INIT, "class Scheduler(Interface)", "def Scheduler(Interface): ...\n    class Planner",
     ("other-kind", "vllm.sched:Scheduler")),
    (ADD, "def add(self, request)", "def add(self, *, request)",
     ("too-many-arguments", "1 by place, 0 taken")),
    (ADD, "def add(self, request)", "def add(self)", ("too-many-arguments", "1 by place, 0 taken")),
    (ADD, "def add(self, request)", "def add(self, request, priority)",
     ("needs-argument", "priority")),
    (ADD, "def add(self", "def put(self", ("missing", "vllm.sched:Scheduler.add")),
    (ADD, "def add(self", "@property\n        def add(self",
     ("other-kind", "vllm.sched:Scheduler.add")),
    (UNIFY, "def unify(", "def unify_specs(", ("missing", "vllm.sched:unify")),
    (UNIFY, "def unify(specs)", "unify = None\n    def other(specs)",
     ("other-kind", "vllm.sched:unify")),
    (RUNNING, "self.running", "self.active", ("missing", "vllm.sched:Scheduler.running")),
    (MAKE, "eos: int = 0", "", ("unknown-keyword", "eos")),
    (MAKE, "prompt: list", "prompt: list\n        hasher: object", ("needs-argument", "hasher")),
    (PROMPT, "prompt: list", "tokens: list", ("missing", "vllm.request:Request.prompt")),
    (ABORTED, "ABORTED = 1", "ABORT = 1", ("missing", "vllm.request:Status.ABORTED")),
]  # fmt: skip

HARMLESS = [
    ("log_stats=False", "log_stats=False, block_size=16"),
    ("log_stats=False", "log_stats=False, *, block_size=16, **extra"),
    ("def add(self, request)", "def add(self, req, priority=0)"),
    ("def unify(specs): ...", "def unify(specs, *more): ..."),
    ("def unify(specs): ...", "from vllm.elsewhere import unify"),
    ("class Interface:", "class Interface:  # comment\n        '''Text.'''\n"),
    ("eos: int = 0", "eos: int = 0\n        hasher: object = None"),
    ("ABORTED = 1", "ABORTED = enum.auto()\n        STOPPED = enum.auto()"),
    ("self.running = []", "self.running: list = list()"),
    ("eos: int = 0", "eos: int = 1"),
]


def _edited(old: str, new: str) -> dict[str, str]:
    files = {path: text.replace(old, new) for path, text in FILES.items()}
    assert files != FILES
    return {**files, "elsewhere.py": "def unify(specs, again=False): ...\n"}


def test_release_that_serves_every_call_has_no_finding(tmp_path: Path) -> None:
    assert [found for seam in ALL for found in findings(tmp_path, FILES, seam)] == []


@pytest.mark.parametrize(("seam", "old", "new", "found"), BREAKS)
def test_seeded_break_is_found_at_its_seam(
    tmp_path: Path, seam: Seam, old: str, new: str, found: tuple[str, str]
) -> None:
    files = _edited(old, new)
    if seam is ADD:
        # Nor may the interface's own method stand in for it.
        files["sched.py"] = files["sched.py"].replace(
            "class Scheduler(Interface)", "class Scheduler"
        )
    # A renamed argument is both unknown and missing.
    assert findings(tmp_path, files, seam)[0] == found


@pytest.mark.parametrize(("old", "new"), HARMLESS)
def test_harmless_edit_is_not_reported(tmp_path: Path, old: str, new: str) -> None:
    files = _edited(old, new)
    assert [found for seam in ALL for found in findings(tmp_path, files, seam)] == []


def test_override_that_went_leaves_another_owner(tmp_path: Path) -> None:
    head, tail = SCHEDULER.split("class Scheduler")
    files = {"sched.py": head + "class Scheduler" + tail.replace("def sample(", "def draw(")}
    assert findings(tmp_path, files, SAMPLE) == [("other-owner", "Interface")]


def test_moved_seam_names_its_new_place(tmp_path: Path) -> None:
    old, new = "vllm.utils:f", "vllm.hashing:f"
    seam = Seam(
        "x",
        Kind.FUNCTION,
        (new, old),
        (
            Use(Consumer.SPECULATORS_0_3, (Call(1),), paths=(old,)),
            Use(Consumer.PATCHED, (Call(1),)),
        ),
    )
    files = {"utils.py": "", "hashing.py": "def f(name): ...\n"}
    (found,) = bind(surface(tmp_path, files, seam), seams=[seam])
    assert (found.by, found.kind) == (Consumer.SPECULATORS_0_3, "moved")
    assert (found.subject, found.found) == (old, new)


def test_optional_seam_may_be_missing_but_not_called_wrongly(tmp_path: Path) -> None:
    gone = relied(Kind.FUNCTION, "vllm.sched:gone", Call(1), optional=True)
    there = relied(Kind.FUNCTION, "vllm.sched:unify", Call(2), optional=True)
    assert findings(tmp_path, FILES, gone) == []
    assert findings(tmp_path, FILES, there) == [("too-many-arguments", "2 by place, 1 taken")]


def test_one_of_several_calls_is_enough_for_who_asks_which(tmp_path: Path) -> None:
    both = (Call(1), Call(2))
    for taken, found in (("a", []), ("a, b", []), ("a, b, c", [("needs-argument", "c")])):
        use = Use(Consumer.NATIVE, both, either=True)
        seam = Seam("x", Kind.FUNCTION, ("vllm.m:f",), (use,))
        files = {"m.py": f"def f({taken}):\n    return None\n"}
        assert findings(tmp_path / taken.replace(", ", ""), files, seam) == found
        strict = Seam("x", Kind.FUNCTION, ("vllm.m:f",), (Use(Consumer.NATIVE, both),))
        assert findings(tmp_path / taken.replace(", ", "") / "s", files, strict) != []


def test_call_whose_signature_cannot_be_read_is_never_called_good(tmp_path: Path) -> None:
    files = {"m.py": "import torch\nfrom torch import f\nclass C(torch.nn.Module): ...\n"}
    for path, kind in (("vllm.m:C", Kind.CLASS), ("vllm.m:f", Kind.FUNCTION)):
        ((found, _),) = findings(tmp_path, files, relied(kind, path, Call(1)))
        assert found == "unreadable"


def test_every_kind_of_finding_has_its_words() -> None:
    for kind in get_args(FindingKind):
        one = Finding("scheduler", Consumer.NATIVE, kind, "SUBJECT", "", "FOUND")
        assert "SUBJECT" in one.reason or "FOUND" in one.reason
        assert str(one) == f"native: scheduler {one.reason}"


def test_seam_that_a_surface_does_not_have_is_not_comparable() -> None:
    empty = Surface("0.1", "vllm wheel", {}, {})
    with pytest.raises(NotComparable) as error:
        bind(empty, seams=[UNIFY])
    assert error.value.failure.id == "seams.not-recorded"


def test_binding_agrees_with_python() -> None:
    def takes(a: int, /, b: int, c: int = 0, *, d: int, e: int = 0) -> None: ...

    def loose(*args: int, **kwargs: int) -> None: ...

    def none() -> None: ...

    calls = [
        Call(count, keywords)
        for count in range(5)
        for keywords in ((), ("d",), ("b", "d"), ("c", "d"), ("d", "e"), ("a", "d"), ("z", "d"))
    ]
    for function in (takes, loose, none):
        signature = inspect.signature(function)
        for call in calls:
            try:
                signature.bind(*[0] * call.positional, **dict.fromkeys(call.keywords, 0))
                good = True
            except TypeError:
                good = False
            assert (bind_call(signature, call) is None) is good, (function.__name__, call)
