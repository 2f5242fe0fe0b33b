"""``harness gate --bisect``: the first release where a check turns."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from harness.cli._app import app
from harness.errors import NotComparable, UsageError
from harness.gate.bisect import between, first_turn, static_check
from harness.seams import recorded, releases

MANY = [f"0.{minor}.0" for minor in range(11, 33)]


@pytest.mark.parametrize("turn", [1, 2, 10, 20, 21])
@pytest.mark.parametrize("every", [True, False])
def test_the_first_release_with_another_answer_is_found(turn: int, every: bool) -> None:
    asked: list[str] = []

    def check(release: str) -> str:
        asked.append(release)
        return "new" if MANY.index(release) >= turn else "old"

    found = first_turn("a check", MANY, check, every=every)
    assert (found.first, found.last_good) == (MANY[turn], MANY[turn - 1])
    assert (found.before, found.after) == ("old", "new")
    assert len(asked) == len(set(asked))
    if not every:
        assert len(asked) <= 7


def test_a_check_that_turns_back_is_dated_to_its_first_turn_when_every_release_is_asked() -> None:
    found = first_turn("c", MANY, lambda r: "x" if r in MANY[3:5] else "y", every=True)
    assert found.first == MANY[3]


def test_a_check_that_is_equal_on_both_ends_finds_nothing() -> None:
    for every in (True, False):
        with pytest.raises(NotComparable, match=r"bisect\.never-turns"):
            first_turn("a check", MANY, lambda release: "same", every=every)


def test_a_verdict_is_told_as_it_is_and_both_green_ones_are_no_turn() -> None:
    green = {"0.11.0": "ok"} | dict.fromkeys(MANY[1:], "ok-with-patches")
    with pytest.raises(NotComparable) as caught:
        first_turn("verdict", MANY, lambda release: green[release])
    assert caught.value.failure.found == "verdict is 'ok', then 'ok-with-patches', both green"
    turned = green | {"0.32.0": "regressed"}
    for every in (True, False):
        found = first_turn("verdict", MANY[1:], lambda release: turned[release], every=every)
        assert (found.before, found.first, found.after) == (
            "ok-with-patches", "0.32.0", "regressed",
        )  # fmt: skip


def test_the_verdict_of_a_release_that_needs_patches_says_so() -> None:
    for name in ("verdict", "patched"):
        assert static_check(name, recorded, "0.32.0")("0.33.0") == "ok-with-patches"
    assert static_check("native", recorded, "0.32.0")("0.33.0") == "ok"


def test_releases_between_two_are_in_order_of_version_and_not_of_text() -> None:
    every = ["0.9.0", "0.10.0", "0.10.1", "0.11.0", "0.8.0"]
    assert between("0.9.0", "0.11.0", every) == ["0.9.0", "0.10.0", "0.10.1", "0.11.0"]


@pytest.mark.parametrize(
    ("good", "bad", "id"),
    [
        ("0.12.0", "0.12.0", "bisect.order"),
        ("0.13.0", "0.12.0", "bisect.order"),
        ("new", "0.12.0", "bisect.not-a-release"),
    ],
)
def test_a_span_that_is_none_is_a_usage_error(good: str, bad: str, id: str) -> None:
    with pytest.raises(UsageError) as caught:
        between(good, bad, MANY)
    assert caught.value.failure.id == id


@pytest.mark.parametrize(("same", "next"), [("0.12.0", "0.12.0 0.32.0"), ("0.32", "0.31.0 0.32")])
def test_one_release_twice_is_answered_with_two_that_can_be_asked(same: str, next: str) -> None:
    with pytest.raises(UsageError) as caught:
        between(same, same, MANY)
    assert caught.value.failure.next == f"harness gate --bisect {next}"
    between(*next.split(), MANY)


def test_release_that_is_not_recorded_is_told_that_no_wheel_is_taken() -> None:
    done = CliRunner().invoke(app, ["gate", "--bisect", "0.9.2", "0.33.0", "--json"])
    said = json.loads(done.stdout)["error"]
    assert (done.exit_code, said["id"]) == (4, "bisect.no-record")
    assert "takes no wheel" in said["next"]


@pytest.mark.parametrize(
    ("check", "good", "bad", "first"),
    [
        ("speculators-0.3.0", "0.11.0", "0.32.0", "0.11.1"),
        ("speculators-0.4.0", "0.16.0", "0.32.0", "0.17.0"),
        ("async-scheduling.default", "0.11.0", "0.32.0", "0.14.0"),
        ("initialize-from-config.warms-up", "0.16.0", "0.32.0", "0.27.0"),
        ("kimi.language-model", "0.15.0", "0.17.0", "0.16.0"),
        ("request", "0.16.0", "0.20.0", "0.17.0"),
    ],
)
def test_known_moves_are_dated_to_their_release(
    check: str, good: str, bad: str, first: str
) -> None:
    chosen = between(good, bad, releases())
    found = first_turn(check, chosen, static_check(check, recorded, good), every=True)
    assert found.first == first


def test_an_unknown_check_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"bisect\.no-check"):
        static_check("colour", recorded, "0.16.0")


def test_command_prints_one_json_object() -> None:
    words = ["gate", "--bisect", "0.16.0", "0.18.0", "--check", "kimi.supports-eagle3", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    body = json.loads(done.stdout)
    assert body["first"] == "0.18.0"
    assert (body["last_good"], body["before"], body["after"]) == ("0.17.1", "no", "yes")
    assert (body["check"], body["rung"]) == ("kimi.supports-eagle3", "static")
    assert list(body["asked"]) == ["0.16.0", "0.17.0", "0.17.1", "0.18.0"]


def test_command_that_finds_no_turn_exits_with_not_comparable() -> None:
    done = CliRunner().invoke(app, ["gate", "--bisect", "0.12.0", "0.13.0", "--check", "scheduler"])
    assert done.exit_code == 4


def test_engine_checks_are_captures_only() -> None:
    words = ["gate", "--bisect", "0.12.0", "0.13.0", "--check", "scheduler", "--rungs", "cpu"]
    assert CliRunner().invoke(app, words).exit_code == 2


@pytest.mark.parametrize(
    "words",
    [
        ["0.33.0"],
        ["--from", "0.32.0"],
        ["--report", "r.html"],
        ["--evidence", "e"],
        ["--slice", "m"],
        ["--model", "m"],
        ["-tp", "2"],
        ["--report-prompts"],
        ["--rungs", "gpu,full"],
        ["--rungs", "static,mock"],
    ],
)
def test_what_bisect_would_not_read_is_refused_and_named(words: list[str]) -> None:
    given = ["gate", *words, "--bisect", "0.16.0", "0.17.0", "--json"]
    done = CliRunner().invoke(app, given)
    error = json.loads(done.stdout)["error"]
    assert (done.exit_code, error["id"]) == (2, "bisect.not-alone")
    named = words[0] if words[0].startswith("-") else "CANDIDATE"
    assert named in error["found"].split(", ")[0]


def test_bisect_tells_of_all_that_it_would_not_read() -> None:
    words = ["--slice", "m", "--report-prompts", "--rungs", "cpu,gpu,full"]
    done = CliRunner().invoke(app, ["gate", "--bisect", "0.16.0", "0.17.0", *words, "--json"])
    found = json.loads(done.stdout)["error"]["found"]
    assert found == "--slice, --report-prompts, --rungs gpu,full"


def test_bisect_without_a_rung_is_refused_as_the_gate_is() -> None:
    words = ["gate", "--bisect", "0.16.0", "0.18.0", "--rungs", ",", "--json"]
    done = CliRunner().invoke(app, words)
    said = json.loads(done.stdout)["error"]["id"]
    assert (done.exit_code, said) == (2, "gate.no-such-rung")
