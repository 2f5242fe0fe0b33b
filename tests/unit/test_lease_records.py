"""Records of leases, what they are worth, and spans of time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness import state
from harness.cli import app
from harness.errors import Refused, UsageError
from harness.host.leftovers.record import Machine, this_machine
from harness.host.processes import Process
from harness.lease import duration, record
from harness.lease.attach import find
from harness.lease.condition import Condition, judge
from harness.lease.record import Book, Client, Lease, Unreadable, check_name
from tests.unit.leases import lease_in

HERE = Machine("here", "boot-1", "pid:[1]")


def harness(*words: str) -> Any:
    return CliRunner().invoke(app, ["engine", *words])


def lease(folder: Path, **changes: object) -> Lease:
    return lease_in(folder, **{"machine": HERE, **changes})


def test_lease_comes_back_from_its_record_whole(tmp_path: Path) -> None:
    whole = lease(
        tmp_path,
        engine=Process(5, 6),
        client=Client(7, 8, "pytest", 9.0, gone=True),
        options={"model": "/m", "max_model_len": 10},
        depths=(1, 3),
        reply={"versions": {"vllm": "0.32"}},
        reason="why",
    )
    book = Book(tmp_path)
    book.write(whole)
    assert book.read("one") == whole
    assert book.all() == [whole]


@pytest.mark.parametrize(
    "broken",
    [
        {"protocol": 99},
        {"keeper": {"pid": 1}},
        {"keeper": None},
        {"client": 3},
        {"depths": None},
        {"started": "yesterday"},
        {"loaded": "then"},
        {"name": "another"},
        {"owner": 7},
    ],
)
def test_record_of_another_harness_is_none(tmp_path: Path, broken: dict[str, object]) -> None:
    book = Book(tmp_path)
    body = {**lease(tmp_path).to_json(), **broken}
    book.path("one").write_text(json.dumps(body))
    assert book.read("one") is None
    assert book.all() == []
    (told,) = book.unreadable()
    assert (told.name, told.path) == ("one", book.path("one"))
    assert ("protocol 99" in told.why) == (broken == {"protocol": 99})


@pytest.mark.parametrize(
    ("text", "why"), [("{", "no JSON"), ("[1]", "no JSON object"), ("", "no JSON")]
)
def test_record_that_is_broken_is_listed_and_nothing_is_done_to_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, why: str
) -> None:
    monkeypatch.setenv(state.VARIABLE, str(tmp_path))
    book = Book()
    book.folder.mkdir()
    book.path("one").write_text(text)
    shown = harness("status")
    assert shown.exit_code == 0
    assert "one: unreadable" in shown.stdout
    assert f"rm {book.path('one')}" in shown.stdout
    assert "no leases" not in shown.output
    (row,) = json.loads(harness("status", "--json").stdout)["unreadable"]
    assert (row["name"], why in row["why"]) == ("one", True)
    assert "harness reclaim" in row["next"]
    for words in (["stop", "one"], ["start", "--model", "m", "--name", "one"]):
        refused = harness(*words, "--json")
        assert refused.exit_code == 3
        assert json.loads(refused.stdout)["error"]["id"] == "lease.unreadable"
    with pytest.raises(Refused, match=r"lease.unreadable"):
        find("one")
    assert book.path("one").read_text() == text


def test_folder_in_the_place_of_a_record_is_listed(tmp_path: Path) -> None:
    book = Book(tmp_path)
    book.path("one").mkdir(parents=True)
    (told,) = book.unreadable()
    assert told.why == "it is no file"
    assert f"rm -r {told.path} " in told.next
    assert f"rm '{tmp_path}/a b'" in Unreadable("a b", tmp_path / "a b", "").next


def test_stop_of_an_unknown_name_leads_to_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(state.VARIABLE, str(tmp_path))
    error = json.loads(harness("stop", "nope", "--json").stdout)["error"]
    assert (error["id"], error["next"]) == ("lease.unknown", "harness engine status")


@pytest.mark.parametrize(
    "words",
    [
        ["stop", "../nope"],
        ["start", "--model", "m", "--name", "../nope"],
        ["start", "--model", "m", "--for", "ever"],
        ["start", "--model", "nowhere"],
    ],
)
def test_what_is_refused_at_once_is_refused_before_a_word_of_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setenv(state.VARIABLE, str(tmp_path))
    refused = harness(*words)
    assert refused.exit_code == 2
    assert "loading" not in refused.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "alive", "condition", "why"),
    [
        ({"state": record.LOADING}, True, Condition.LOADING, ""),
        ({}, True, Condition.READY, ""),
        ({"client": Client(7, 8, "pytest x", 9.0)}, True, Condition.BUSY, "pid 7 (pytest x)"),
        ({}, False, Condition.DEAD, "keeper"),
        ({"state": record.LOADING}, False, Condition.DEAD, "was killed"),
        ({"state": record.ENDED, "reason": "host.x: y"}, False, Condition.DEAD, "host.x: y"),
        ({"state": record.EXPIRED, "reason": "over"}, False, Condition.EXPIRED, "over"),
        # Its keeper still cleans up: the engine is not to be used any more.
        ({"state": record.ENDED, "reason": "host.x: y"}, True, Condition.DEAD, "host.x: y"),
        ({"machine": replace(HERE, host="there")}, False, Condition.ELSEWHERE, "on there"),
        ({"machine": replace(HERE, boot="boot-0")}, True, Condition.DEAD, "restarted"),
        ({"machine": replace(HERE, namespace="pid:[2]")}, False, Condition.ELSEWHERE, "container"),
    ],
)
def test_record_is_judged_by_what_runs(
    tmp_path: Path, changes: dict[str, object], alive: bool, condition: Condition, why: str
) -> None:
    found = judge(lease(tmp_path, **changes), machine=HERE, alive=lambda process: alive)
    assert found.condition is condition
    assert why in found.why
    assert condition.live == (condition not in (Condition.DEAD, Condition.EXPIRED))


def test_pid_that_was_handed_out_again_is_not_the_keeper(tmp_path: Path) -> None:
    ours = lease_in(tmp_path)
    assert judge(ours).condition is Condition.READY
    other = replace(ours, keeper=Process(ours.keeper.pid, ours.keeper.start - 1))
    assert judge(other).condition is Condition.DEAD
    assert ours.machine == this_machine()


@pytest.mark.parametrize("name", ["a", "K2.5_int4-tp8", "9" * 40])
def test_good_name(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a b", "x" * 41, "auto", "NO"])
def test_name_that_is_no_file_or_means_something_else_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"lease.bad-name"):
        check_name(name)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("4h", 14400), ("90m", 5400), ("1h30m", 5400), ("1.5 h", 5400), ("45s", 45), ("30d", 2592000)],
)
def test_span_is_read(text: str, seconds: float) -> None:
    assert duration.parse(text) == seconds


@pytest.mark.parametrize("text", ["", "4", "h", "0s", "-1h", "4h!", "31d", "inf", "1e3s"])
def test_span_that_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"lease.bad-duration"):
        duration.parse(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0 s"),
        (59.4, "59 s"),
        (60, "1 min"),
        (3599, "59 min"),
        (3900, "1 h 05 min"),
        (90000, "1 d 1 h"),
    ],
)
def test_span_is_shown(seconds: float, text: str) -> None:
    assert duration.show(seconds) == text
