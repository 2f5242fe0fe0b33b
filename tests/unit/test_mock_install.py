"""Contracts of the mock's coming and going: it is there whole, or not at all."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from fixtures.mock_vllm import install
from tests.unit.mock_engines import Engine


def installed() -> list[str]:
    return sorted(name for name in sys.modules if name.partition(".")[0] == "vllm")


@pytest.fixture
def release_016() -> Iterator[ModuleType]:
    with install("0.16.0") as vllm:
        yield vllm


def test_nothing_is_left_after_the_block() -> None:
    before, finders = dict(sys.modules), list(sys.meta_path)
    with install("0.16.0"):
        assert "vllm.v1.core.sched.scheduler" in sys.modules
    assert installed() == []
    assert sys.meta_path == finders
    assert {name for name in sys.modules if name not in before} <= {
        name for name in sys.modules if name.startswith(("fixtures.", "encodings."))
    }


def test_nothing_is_left_after_an_exception_in_the_block() -> None:
    finders = list(sys.meta_path)
    with pytest.raises(ZeroDivisionError), install("0.16.0"):
        _ = 1 / 0
    assert installed() == []
    assert sys.meta_path == finders
    with install("0.32.0") as vllm:
        assert vllm.__version__ == "0.32.0"


def test_a_real_vllm_is_never_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ModuleType("vllm")
    monkeypatch.setitem(sys.modules, "vllm", real)
    with pytest.raises(RuntimeError, match="a real vllm is imported already"), install("0.16.0"):
        pass
    assert sys.modules["vllm"] is real


def test_a_real_submodule_alone_is_never_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm.config", ModuleType("vllm.config"))
    with pytest.raises(RuntimeError, match="a real vllm is imported already"), install("0.16.0"):
        pass


def test_two_mocks_are_refused(release_016: ModuleType) -> None:
    with pytest.raises(RuntimeError, match=r"a mock vllm 0\.16\.0 is installed already"):  # noqa: SIM117
        with install("0.32.0"):
            pass
    assert sys.modules["vllm"] is release_016


def test_what_others_put_beside_the_mock_is_reported_and_left() -> None:
    stranger = ModuleType("vllm.config")
    with pytest.raises(RuntimeError, match=r"vllm\.config"), install("0.16.0"):
        sys.modules["vllm.config"] = stranger
    assert sys.modules.pop("vllm.config") is stranger
    assert installed() == []


def test_a_release_that_was_never_read_is_refused() -> None:
    with pytest.raises(Exception, match="recorded release"), install("0.10.0"):
        pass


@pytest.mark.parametrize("release", ["0.16.0", "0.29.0"])
def test_names_that_only_later_releases_have_are_there_from_then_on(release: str) -> None:
    with install(release):
        engine = Engine()
        assert hasattr(engine.kv_configs[0], "kv_cache_groups")
        assert hasattr(engine.scheduler, "requests")
        layouts = hasattr(engine.executor, "get_supported_kv_cache_layouts")
        assert layouts is (release == "0.29.0")
