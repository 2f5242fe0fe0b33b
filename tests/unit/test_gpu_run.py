"""Running the GPU tests from a pack: unpacking, the deadline, and the bundle that comes back."""

from __future__ import annotations

import importlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
GPU = ROOT / "ci" / "gpu"


def load(name: str) -> Any:
    """Import one of the scripts, which find each other beside themselves."""
    if str(GPU) not in sys.path:
        sys.path.append(str(GPU))
    return importlib.import_module(name)


failures: Any = load("failures")
unpacked: Any = load("unpacked")
deadline: Any = load("deadline")
machine: Any = load("machine")
results: Any = load("results")
bundle: Any = load("bundle")
sessions: Any = load("sessions")
run: Any = load("run")

REPORT = (
    '<testsuites><testsuite name="pytest" tests="2" failures="1" errors="0" skipped="0" '
    'time="1.5"><testcase name="test_a"/><testcase name="test_b"><failure/></testcase>'
    "</testsuite></testsuites>"
)


def make_archive(path: Path, **files: str) -> Path:
    with tarfile.open(path, "w:xz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return path


class TestUnpacking:
    def test_second_call_finds_the_folder_of_the_first(self, tmp_path: Path) -> None:
        archive = make_archive(tmp_path / "a.tar.xz", vllm="text")
        site = unpacked.unpack(archive, tmp_path / "home")
        (site / "left").touch()
        assert (site / "vllm").read_text() == "text"
        assert unpacked.unpack(archive, tmp_path / "home") == site
        assert (site / "left").exists()

    def test_other_archive_gets_a_folder_of_its_own(self, tmp_path: Path) -> None:
        first = unpacked.unpack(make_archive(tmp_path / "a.tar.xz", x="1"), tmp_path / "home")
        second = unpacked.unpack(make_archive(tmp_path / "a.tar.xz", x="2"), tmp_path / "home")
        assert (first / "x").read_text() + (second / "x").read_text() == "12"

    def test_what_a_killed_run_left_is_made_anew(self, tmp_path: Path) -> None:
        archive = make_archive(tmp_path / "a.tar.xz", vllm="text")
        name = unpacked.hash_of(archive)[:24]
        (tmp_path / "home" / f"{name}.part" / "half").mkdir(parents=True)
        site = unpacked.unpack(archive, tmp_path / "home")
        assert sorted(one.name for one in site.iterdir()) == ["vllm"]

    @pytest.mark.parametrize("damage", ["cut", "no-archive", "missing"])
    def test_bad_archive_is_refused_and_leaves_no_folder(self, tmp_path: Path, damage: str) -> None:
        text = "".join(random.Random(0).choices("abcdefgh", k=100_000))
        archive = make_archive(tmp_path / "a.tar.xz", x=text)
        data = archive.read_bytes()
        archive.write_bytes(data[: len(data) // 2] if damage == "cut" else b"something else")
        if damage == "missing":
            archive.unlink()
        with pytest.raises(failures.GpuError, match=r"gpu\.(cut|no)-archive"):
            unpacked.unpack(archive, tmp_path / "home")
        assert [one for one in (tmp_path / "home").glob("*") if one.is_dir()] == []

    def test_wrapper_puts_the_pack_first_and_keeps_the_path(self, tmp_path: Path) -> None:
        site = tmp_path / "it's a site"
        site.mkdir()
        wrapper = unpacked.write_wrapper(tmp_path / "python", Path(sys.executable), site)
        ask = [str(wrapper), "-c", "import os, sys; print(os.environ['PYTHONPATH'], *sys.argv)"]
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        alone = subprocess.run(ask, env=environment, capture_output=True, text=True, check=True)
        assert alone.stdout == f"{site} -c\n"
        environment["PYTHONPATH"] = "/other"
        both = subprocess.run(
            [*ask, "a b"], env=environment, capture_output=True, text=True, check=True
        )
        assert both.stdout == f"{site}:/other -c a b\n"

    def test_pack_for_another_python_is_refused(self) -> None:
        unpacked.check_python({"python": "3.12"}, "3.12.3", "here")
        unpacked.check_python({}, "3.9.1", "here")
        with pytest.raises(failures.GpuError, match=r"gpu\.other-python(.|\n)*3\.1\.2"):
            unpacked.check_python({"python": "3.12"}, "3.1.2", "here")


def gone(pid: int) -> bool:
    """Say whether a process has ended, within a moment; one that nobody waits for counts."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


class TestDeadline:
    def run(self, tmp_path: Path, script: str, seconds: float, grace: float = 5.0) -> int:
        code: int = deadline.run(
            ["sh", "-c", script],
            output=tmp_path / "output",
            until=time.monotonic() + seconds,
            cwd=tmp_path,
            env=dict(os.environ),
            grace=grace,
        )
        return code

    def test_exit_code_and_output_are_the_programs(self, tmp_path: Path) -> None:
        assert self.run(tmp_path, "echo out; echo err >&2; exit 7", 30) == 7
        assert (tmp_path / "output").read_text() == "out\nerr\n"
        assert self.run(tmp_path, "kill -SEGV $$", 30) == 128 + signal.SIGSEGV

    def test_deadline_ends_the_whole_group_also_who_does_not_listen(self, tmp_path: Path) -> None:
        script = "trap '' INT TERM; sleep 100 & echo $$ $! >pids; wait; sleep 100"
        assert self.run(tmp_path, script, 0.5, grace=0.2) == 124
        assert all(map(gone, map(int, (tmp_path / "pids").read_text().split())))

    def test_program_may_write_its_report_at_the_deadline(self, tmp_path: Path) -> None:
        script = "trap 'echo report >report; exit 2' INT; while :; do sleep 0.05; done"
        assert self.run(tmp_path, script, 0.5) == 124
        assert (tmp_path / "report").read_text() == "report\n"

    def test_what_a_program_leaves_behind_is_ended(self, tmp_path: Path) -> None:
        assert self.run(tmp_path, "sleep 100 & echo $! >pids", 30) == 0
        assert gone(int((tmp_path / "pids").read_text()))


class TestResults:
    def test_figures_are_found_after_names_and_dots_and_on_lines_of_their_own(self) -> None:
        output = (
            'tests/gpu/test_x.py::test_a[p q] {"ratio": 0.9}\nPASSED\n{"held": {"rows": 0}}\n'
            'tests/gpu/test_x.py::test_b \n{"n": 1}\nPASSED\n'
            "{'python': 1}\n{}x\n[1]\nINFO settings {\"n\": 2}\n{not json}\n"
        )
        assert list(results.figures(output)) == [
            {"test": "tests/gpu/test_x.py::test_a[p q]", "figures": {"ratio": 0.9}},
            {"test": "tests/gpu/test_x.py::test_a[p q]", "figures": {"held": {"rows": 0}}},
            {"test": "tests/gpu/test_x.py::test_b", "figures": {"n": 1}},
        ]
        assert list(results.figures('..{"n": 1}\n')) == [{"test": None, "figures": {"n": 1}}]

    def test_report_is_told_in_numbers_and_names(self, tmp_path: Path) -> None:
        (tmp_path / "junit.xml").write_text(REPORT)
        assert results.summary(tmp_path / "junit.xml") == {
            **{"tests": 2, "failures": 1, "errors": 0, "skipped": 0, "seconds": 1.5},
            **{"cases": ["test_a", "test_b"], "failed": ["test_b"]},
        }
        assert results.summary(tmp_path / "missing.xml") == {}

    def test_reports_become_one_and_a_cut_one_is_passed_over(self, tmp_path: Path) -> None:
        for name, text in {"a": REPORT, "b": REPORT, "c": REPORT[:50]}.items():
            (tmp_path / name).write_text(text)
        merged = results.merge([tmp_path / name for name in "abcd"])
        assert len(ElementTree.fromstring(merged).findall("testsuite")) == 2


class TestBundle:
    def read(self, path: Path) -> dict[str, bytes]:
        with tarfile.open(path) as tar:
            members = [(one.name, tar.extractfile(one)) for one in tar]
            return {name.removeprefix("bundle/"): file.read() for name, file in members if file}

    def test_log_is_cut_to_whole_last_lines(self) -> None:
        lines = b"".join(b"line %05d\n" % number for number in range(1000))
        found = bundle.cut(lines, 100)
        assert found.endswith(b"line 00998\nline 00999\n")
        assert found.splitlines()[0] == b"[10901 bytes left out]"
        assert found.splitlines()[1] == b"line 00991"
        assert bundle.cut(lines, len(lines)) == lines

    def test_logs_of_all_tests_are_found_and_cut(self, tmp_path: Path) -> None:
        for name in ("test_a0", "deep/test_b0"):
            (tmp_path / name).mkdir(parents=True)
            (tmp_path / name / "engine.log").write_bytes(b"x" * 99 + b"\n" + b"y\n" * 200_000)
        (tmp_path / "test_current").symlink_to(tmp_path / "test_a0")
        found = bundle.logs(tmp_path)
        assert sorted(found) == ["deep/test_b0/engine.log", "test_a0/engine.log"]
        assert all(len(text) <= bundle.LOG_KEPT + 40 for text in found.values())

    def test_bundle_stays_under_its_limit_and_keeps_ends_and_evidence(self, tmp_path: Path) -> None:
        noise = random.Random(0).randbytes(400_000).hex().encode()
        lines = b"\n".join(noise[i : i + 80] for i in range(0, len(noise), 80))
        files = {
            "1-x/output.txt": lines + b"\nthe end\n",
            "1-x/tmp/engine.log": lines + b"\nits end\n",
            "junit.xml": lines,
            "evidence.json": b"{}",
        }
        size = bundle.write(tmp_path / "bundle.tar.gz", files, limit=100_000)
        assert size == (tmp_path / "bundle.tar.gz").stat().st_size <= 100_000
        found = self.read(tmp_path / "bundle.tar.gz")
        assert found.keys() == files.keys()
        assert found["1-x/output.txt"].endswith(b"the end\n")
        assert found["1-x/tmp/engine.log"].endswith(b"its end\n")
        assert found["evidence.json"] == b"{}"
        ElementTree.fromstring(found["junit.xml"])

    def test_small_bundle_is_whole_and_leaves_no_scratch(self, tmp_path: Path) -> None:
        files = {"junit.xml": REPORT.encode(), "figures.jsonl": b'{"a": 1}\n'}
        bundle.write(tmp_path / "out" / "bundle.tar.gz", files)
        assert self.read(tmp_path / "out" / "bundle.tar.gz") == files
        assert [one.name for one in (tmp_path / "out").iterdir()] == ["bundle.tar.gz"]


class TestSessions:
    def test_the_lane_is_one_session_of_all_that_is_not_slow(self) -> None:
        (found,) = sessions.choose([], ["-x"])
        assert found.arguments == ("tests/gpu", "-m", "gpu and not slow", "-x")
        assert found.name == "1-lane"
        assert found.shown.endswith("tests/gpu -m 'gpu and not slow' -x")  # the last -m holds

    def test_sessions_that_are_asked_for_replace_them(self) -> None:
        found = sessions.choose(["tests/gpu -k 'a b'", "-x a/test_y.py::test_z"], ["-q"])
        assert [one.arguments for one in found] == [
            ("tests/gpu", "-k", "a b", "-q"),
            ("-x", "a/test_y.py::test_z", "-q"),
        ]
        assert [one.name for one in found] == ["1-gpu", "2-test_y"]

    @pytest.mark.parametrize(
        ("codes", "code"),
        [
            ([0, 0], 0),
            ([0, 5], 0),
            ([5, 5], 5),
            ([0, 1, 2], 1),
            ([1, 124, None], 124),
            ([0, None], 124),
            ([1, 130, None], 130),
        ],
    )
    def test_exit_code_is_the_first_that_is_no_success(
        self, codes: list[int | None], code: int
    ) -> None:
        outcomes = [
            sessions.Outcome(sessions.Session("x", ()), one, Path(), Path()) for one in codes
        ]
        assert sessions.exit_code(outcomes) == code


class TestMachine:
    def test_gpus_are_what_nvidia_smi_says(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'NVIDIA H200, 580.1, 143771, 5'\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        (gpu,) = machine.gpus()
        assert (gpu["name"], gpu["memory.used"]) == ("NVIDIA H200", "5")
        assert machine.hardware([gpu, gpu]).startswith("2 x NVIDIA H200, ")

    def test_machine_without_nvidia_smi_git_or_python_is_no_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        assert machine.gpus() == []
        assert machine.commit(tmp_path) is None
        assert machine.versions(tmp_path / "python", {}) == {}
        assert machine.hardware([]).startswith("no GPU, ")


PYTEST = """\
#!{python}
import json, os, sys, time
from pathlib import Path
arguments = sys.argv[1:]
if arguments[0] == "-c":
    if "models" not in arguments[1]:
        print(json.dumps({{"vllm": "0.26.0", "python": "3.12.3"}}))
    else:
        Path(arguments[2]).mkdir()
        print("making", arguments[2:])
    sys.exit()
if arguments[:2] == ["-m", "compileall"]:
    Path(arguments[-1], "compiled").touch()
    sys.exit()
place = dict(one.split("=", 1) for one in arguments if one.startswith("--") and "=" in one)
log = Path(place["--basetemp"], "test_a0", "engine.log")
log.parent.mkdir(parents=True)
log.write_text("engine says hello\\n")
model = arguments[arguments.index("--hs-model") + 1 :][:1] if "--hs-model" in arguments else None
path = os.environ["PYTHONPATH"].split(":")
told = {{"model": model, "path": path, "compiled": Path(path[0], "compiled").exists()}}
print(json.dumps(told | {{"writes": "PYTHONDONTWRITEBYTECODE" not in os.environ}}), flush=True)
if "hang" in arguments:
    time.sleep(100)
Path(place["--junitxml"]).write_text({report!r})
sys.exit(int(arguments[-1]))
"""


class TestCommandLine:
    """The script itself, with a stand-in for the box's Python and its pytest."""

    def command(self, tmp_path: Path, *words: str) -> list[str]:
        python = tmp_path / "box-python"
        python.write_text(PYTEST.format(python=sys.executable, report=REPORT))
        python.chmod(0o755)
        archive = make_archive(tmp_path / "site.tar.xz", vllm="", **{"harness-pack.json": "{}"})
        return [
            *(sys.executable, str(GPU / "run.py"), str(archive), "--out", str(tmp_path / "out")),
            *("--site", str(tmp_path / "home"), "--python", str(python), *words),
        ]

    def run(self, tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "scratch").mkdir(exist_ok=True)
        return subprocess.run(
            self.command(tmp_path, *words),
            env={
                **os.environ,
                "TMPDIR": str(tmp_path / "scratch"),
                "PYTHONDONTWRITEBYTECODE": "1",  # as boxes for containers have it
            },
            capture_output=True,
            text=True,
            timeout=60,
        )

    def read(self, tmp_path: Path) -> dict[str, Any]:
        assert [one.name for one in (tmp_path / "out").iterdir()] == ["bundle.tar.gz"]
        assert list((tmp_path / "scratch").iterdir()) == []
        found: dict[str, Any] = {}
        for name, data in TestBundle().read(tmp_path / "out" / "bundle.tar.gz").items():
            found[name] = json.loads(data) if name.endswith(".json") else data.decode()
        return found

    def test_bundle_has_reports_outputs_logs_figures_machine_and_evidence(
        self, tmp_path: Path
    ) -> None:
        words = ["--slice", "6", "--architecture", "plain", "--commit", "abc", "--what", "a try"]
        done = self.run(tmp_path, *words, "--session", "a.py 0", "--session", "b.py 1")
        assert done.returncode == 1, done.stderr
        found = self.read(tmp_path)
        assert sorted(found) == [
            *("1-a/output.txt", "1-a/tmp/test_a0/engine.log"),
            *("2-b/output.txt", "2-b/tmp/test_a0/engine.log"),
            *("evidence.json", "figures.jsonl", "junit.xml", "machine.json"),
        ]
        assert len(ElementTree.fromstring(found["junit.xml"]).findall("testsuite")) == 2
        figures = [json.loads(line) for line in found["figures.jsonl"].splitlines()]
        assert [one["session"] for one in figures] == ["1-a", "2-b"]
        (model,) = figures[0]["figures"]["model"]
        assert model.endswith("/model")
        site, checkout, *_ = figures[0]["figures"]["path"]
        assert Path(site).parent == tmp_path / "home"
        assert checkout == str(ROOT)
        evidence = found["evidence.json"]
        recorded = json.loads(
            (ROOT / "fixtures/evidence/2026-11-29-h200-pytest-gpu.json").read_text()
        )
        assert recorded.keys() <= evidence.keys()
        assert evidence["what"] == "a try"
        assert evidence["commit"] == "abc"
        assert evidence["versions"]["vllm"] == "0.26.0"
        assert [one["exit"] for one in evidence["runs"]] == [0, 1]
        assert recorded["runs"][0].keys() <= evidence["runs"][1].keys()
        assert evidence["runs"][1]["model"] == "kimi-k2.5-slice, plain, 6 layers"
        assert str(tmp_path) not in json.dumps(evidence["command"])
        assert set(found["machine.json"]["gpus"]) == {"before", "after"}

    def test_a_pack_is_compiled_before_its_sessions_and_no_process_does_it_anew(
        self, tmp_path: Path
    ) -> None:
        assert self.run(tmp_path, "--session", "a.py 0").returncode == 0
        (line,) = self.read(tmp_path)["figures.jsonl"].splitlines()
        figures = json.loads(line)["figures"]
        assert figures["compiled"]
        assert figures["writes"]

    def test_words_after_two_dashes_go_to_every_session(self, tmp_path: Path) -> None:
        done = self.run(tmp_path, "--session", "a.py", "--session", "b.py", "--", "-k", "x", "0")
        assert done.returncode == 0, done.stderr
        runs = self.read(tmp_path)["evidence.json"]["runs"]
        assert [one["command"].partition("--hs-require-gpu ")[2] for one in runs] == [
            "a.py -k x 0",
            "b.py -k x 0",
        ]

    def test_deadline_returns_124_with_a_bundle_of_what_there_is(self, tmp_path: Path) -> None:
        sessions = ["--session", "a.py hang", "--session", "b.py 0"]
        done = self.run(tmp_path, "--timeout", "4", *sessions)
        assert done.returncode == 124, done.stderr
        found = self.read(tmp_path)
        assert [one["exit"] for one in found["evidence.json"]["runs"]] == [124, None]
        assert found["1-a/tmp/test_a0/engine.log"] == "engine says hello\n"
        assert '"session": "1-a"' in found["figures.jsonl"]

    def test_sigterm_ends_the_tests_and_bundles_what_there_is(self, tmp_path: Path) -> None:
        (tmp_path / "scratch").mkdir()
        program = subprocess.Popen(
            self.command(tmp_path, "--session", "a.py hang"),
            env={**os.environ, "TMPDIR": str(tmp_path / "scratch")},
            stderr=subprocess.DEVNULL,
        )
        until = time.monotonic() + 30
        # The session's first words; its files lie in memory, away from the scratch folder.
        while not any(p.read_text() for p in (tmp_path / "scratch").rglob("output.txt")):
            assert time.monotonic() < until, "the session did not start"
            time.sleep(0.05)
        program.terminate()
        assert program.wait(timeout=30) == 130
        assert self.read(tmp_path)["evidence.json"]["runs"][0]["exit"] == 130

    def test_refusal_leaves_no_bundle_also_none_of_before(self, tmp_path: Path) -> None:
        command = self.command(tmp_path)
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "bundle.tar.gz").write_text("of before")
        (tmp_path / "site.tar.xz").write_bytes(b"cut")
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 3
        assert "gpu.cut-archive" in done.stderr
        assert list((tmp_path / "out").iterdir()) == []
