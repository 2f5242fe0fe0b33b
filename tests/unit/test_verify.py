from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.dataset.folder import OutputFolder
from harness.dataset.prompts import read_prompts
from harness.dataset.run_info import parse_run
from harness.dataset.samples import read_sample
from harness.dataset.verify import VerifyReport, verify
from harness.errors import UsageError
from tests.unit.corruptions import CATALOGUE, COUNT, flip, nan, rewrite, sample
from tests.unit.datasets import (
    LIMITS,
    build,
    make_hidden,
    make_prompts,
    publish,
    run_info,
    write_lines,
)


@pytest.fixture(scope="session", params=["float32", "bfloat16"])
def pristine(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp(f"good-{request.param}")
    return build(base / "out", make_prompts(base, COUNT), dtype=request.param)


@pytest.fixture
def good(pristine: Path, tmp_path: Path) -> Path:
    """A good dataset of this test's own."""
    return Path(shutil.copytree(pristine, tmp_path / "out"))


def checks(report: VerifyReport) -> set[tuple[str, str]]:
    return {(bad.id, bad.check) for bad in report.bad}


def test_catalogue_is_large_and_its_names_are_distinct() -> None:
    assert len(CATALOGUE) >= 20
    assert len({name for name, *_ in CATALOGUE}) == len(CATALOGUE)


@pytest.mark.parametrize(
    ("name", "corrupt", "id", "check"), CATALOGUE, ids=[c[0] for c in CATALOGUE]
)
def test_each_corruption_is_caught_and_named(
    good: Path, name: str, corrupt: Callable[[Path], Any], id: str, check: str
) -> None:
    assert verify(good).ok
    corrupt(good)
    report = verify(good)
    assert not report.ok
    assert (id, check) in checks(report)
    for bad in report.bad:
        assert bad.expected != bad.found
        assert json.dumps(bad.to_json())


def test_good_folder_gives_no_findings_and_counts_its_samples(good: Path) -> None:
    report = verify(good)
    assert report.bad == ()
    assert report.checked == COUNT
    assert report.to_json() == {"out": str(good), "ok": True, "checked": COUNT, "bad": []}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_two_hundred_good_samples_give_no_findings(tmp_path: Path, dtype: str) -> None:
    prompts = make_prompts(tmp_path, 210, seed=3)
    report = verify(build(tmp_path / "out", prompts, dtype=dtype))
    assert report.bad == ()
    assert report.checked == 210


def test_any_single_flipped_bit_in_any_file_is_found(good: Path) -> None:
    random = np.random.default_rng(0)
    files = [path for path in sorted(good.rglob("*")) if path.is_file() and path.name != ".lock"]
    assert len(files) == COUNT + 2 + 3
    for path in files:
        data = path.read_bytes()
        bits = {0, 7, 8 * len(data) - 1, 8 * len(data) - 8}
        bits |= set(random.integers(0, 8 * len(data), 8).tolist())
        for bit in sorted(bits):
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            path.write_bytes(changed)
            assert not verify(good).ok, f"bit {bit} of {path.name}"
        path.write_bytes(data)
    assert verify(good).ok


def test_every_bit_of_the_run_file_counts(good: Path) -> None:
    """The only file without another to vouch for it."""
    data = (good / "run.json").read_bytes()
    assert parse_run(data)["state"] == "complete"
    for bit in range(0, 8 * len(data), 7):  # every byte, and every place in a byte
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match=r".*"):
            parse_run(bytes(changed))


def test_every_kind_of_fault_is_reported_not_only_the_first(good: Path) -> None:
    flip(sample(good, 0))
    sample(good, 1).unlink()
    rewrite(good, 3, nan)
    (good / "hs_99.safetensors").touch()
    found = checks(verify(good))
    assert {("p0", "checksum"), ("p1", "missing"), ("p3", "finite")} <= found
    assert ("hs_99.safetensors", "extra") in found


@pytest.mark.parametrize("name", ["manifest.jsonl", "prompts_arrow/state.json"])
def test_file_that_cannot_be_read_is_a_finding_and_the_rest_is_checked(
    good: Path, name: str
) -> None:
    (good / name).unlink()
    (good / name).symlink_to(good / name)
    report = verify(good)
    assert {bad.check for bad in report.bad} & {"manifest", "arrow"}
    if name != "manifest.jsonl":
        assert report.checked == COUNT


def test_unfinished_run_is_not_ok_but_its_samples_are_checked(tmp_path: Path) -> None:
    prompts = make_prompts(tmp_path, 5)
    with OutputFolder.open(tmp_path / "out", run_info(prompts), prompts) as folder:
        publish(folder, prompts, 0)
        publish(folder, prompts, 3)
    report = verify(tmp_path / "out")
    assert report.checked == 2
    (bad,) = report.bad
    assert (bad.id, bad.check) == ("run.json", "complete")
    assert bad.found == "started, 2 samples, first missing index 1"


def test_interrupted_run_is_not_ok_and_says_why_and_its_samples_are_checked(tmp_path: Path) -> None:
    prompts = make_prompts(tmp_path, 5)

    def run() -> None:
        with OutputFolder.open(tmp_path / "out", run_info(prompts), prompts) as folder:
            publish(folder, prompts, 3)
            publish(folder, prompts, 0)
            raise RuntimeError("the disk went away")

    with pytest.raises(RuntimeError):
        run()
    report = verify(tmp_path / "out")
    assert report.checked == 2
    (bad,) = report.bad
    assert bad.found == (
        "failed (RuntimeError: the disk went away), 2 samples, first missing index 1"
    )


def test_notes_of_the_user_and_leftover_hidden_files_are_no_fault(good: Path) -> None:
    (good / "README.md").write_text("about this")
    (good / ".DS_Store").touch()
    assert verify(good).ok


def test_folder_without_a_run_is_a_usage_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(UsageError) as caught:
            verify(path)
        assert caught.value.failure.id == "verify.no-dataset"


def test_each_sample_is_read_once(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    real = Path.open

    def watch(self: Path, *args: Any, **kwargs: Any) -> Any:
        opened.append(self.name)
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", watch)
    assert verify(good).ok
    for index in range(COUNT):
        assert opened.count(f"hs_{index}.safetensors") == 1


def test_progress_counts_up_to_all_samples(good: Path) -> None:
    seen: list[tuple[int, int]] = []
    verify(good, progress=lambda *now: seen.append(now))
    assert seen == [(done, COUNT) for done in range(1, COUNT + 1)]


@settings(
    max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    rows=st.lists(
        st.tuples(st.lists(st.integers(0, 499), min_size=1, max_size=12), st.booleans()),
        min_size=1,
        max_size=6,
    ),
    dtype=st.sampled_from(["float32", "bfloat16"]),
)
def test_any_prompts_make_a_folder_that_verifies(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], dtype: str
) -> None:
    base = tmp_path_factory.mktemp("any")
    lines = [
        {"input_ids": ids, **({"loss_mask": [1] * len(ids)} if masked else {})}
        for ids, masked in rows
    ]
    prompts = read_prompts(write_lines(base / "p.jsonl", lines), limits=LIMITS)
    out = build(base / "out", prompts, dtype=dtype)
    assert verify(out).bad == ()
    for prompt in prompts:
        back = read_sample(sample(out, prompt.index))
        assert np.array_equal(back.hidden, make_hidden(prompt.tokens, 1000 + prompt.index, dtype))
