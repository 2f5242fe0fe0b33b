"""What a command does where stdout or stderr cannot take what it says."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from harness.cli import app, main

_ROOT = typer.main.get_command(app)

COMMANDS = (
    ["--version"],
    ["patches", "list", "--markdown"],
    ["plan", "--profile", "kimi-k2.5-tiny", "--gpu-memory", "h100"],
    ["preflight", "--profile", "kimi-k2.5", "--model", "m", "--json"],
)


class Broken(io.TextIOWrapper):
    """A stream that takes nothing."""

    def __init__(self, number: int, *, late: bool = False) -> None:
        self._number = number
        self._late = late
        super().__init__(io.BytesIO(), "utf-8")

    def write(self, text: str) -> int:
        if self._late:
            return len(text)
        raise OSError(self._number, os.strerror(self._number))

    def flush(self) -> None:
        if not self.closed:
            raise OSError(self._number, os.strerror(self._number))

    def close(self) -> None:
        """Leave it open: the garbage collector would call ``flush``."""


class Called:
    """One command in this process, with streams of its own."""

    def __init__(self, patch: pytest.MonkeyPatch, words: list[str]) -> None:
        self._patch, self._words = patch, words

    def __call__(self, stdout: object, stderr: object) -> int:
        with self._patch.context() as patch:
            # To put the whole command line together takes longer than most commands.
            patch.setattr("typer.main.get_command", lambda _: _ROOT)
            patch.setattr(sys, "argv", ["harness", *self._words])
            patch.setattr(sys, "stdout", stdout)
            patch.setattr(sys, "stderr", stderr)
            with pytest.raises(SystemExit) as ended:
                main()
        return int(ended.value.code or 0)


@pytest.fixture(params=COMMANDS, ids=" ".join)
def called(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Called:
    return Called(monkeypatch, request.param)


@pytest.mark.parametrize("late", [False, True])
def test_a_stdout_that_takes_nothing_is_one_clear_error(called: Called, late: bool) -> None:
    said = io.StringIO()
    assert called(Broken(errno.ENOSPC, late=late), said) == 4
    text = said.getvalue()
    assert text.count("output.write-failed") == 1
    for word in ("No space left on device", "stdout", "next:"):
        assert word in text
    assert "Traceback" not in text


def test_a_closed_stdout_is_told_as_a_full_one_is(called: Called) -> None:
    said = io.StringIO()
    assert called(None, said) == 4
    assert "output.write-failed" in said.getvalue()


def test_a_reader_that_is_gone_changes_neither_exit_code_nor_stderr(called: Called) -> None:
    said, plain = io.StringIO(), io.StringIO()
    code = called(io.StringIO(), plain)
    assert called(Broken(errno.EPIPE), said) == code
    assert said.getvalue() == plain.getvalue()


@pytest.mark.parametrize("stderr", [None, Broken(errno.ENOSPC)])
def test_a_stderr_that_takes_nothing_keeps_the_exit_code_and_the_result(
    called: Called, stderr: object
) -> None:
    wanted, got = io.StringIO(), io.StringIO()
    code = called(wanted, io.StringIO())
    assert called(got, stderr) == code
    assert got.getvalue() == wanted.getvalue()


def test_a_name_that_is_no_text_can_be_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), "utf-8")
    call = Called(monkeypatch, ["plan", "--model", "/nowhere/\udcff", "--json"])
    assert call(out, io.StringIO()) == 2
    assert json.loads(out.buffer.getvalue())["error"]["where"]


def _run(words: str, **streams: object) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    shell = f'exec "{sys.executable}" -m harness {words}'
    return subprocess.run(["sh", "-c", shell], env=env, text=True, check=False, **streams)  # type: ignore[call-overload, no-any-return]


def test_a_real_full_disk_and_a_real_closed_reader() -> None:
    full = _run("patches list > /dev/full", stderr=subprocess.PIPE)
    assert full.returncode == 4
    assert "output.write-failed" in full.stderr
    assert "Traceback" not in full.stderr
    reader, writer = os.pipe()
    os.close(reader)
    gone = _run("patches list", stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (gone.returncode, gone.stderr) == (0, "")


@pytest.mark.slow
def test_what_is_opened_later_never_takes_the_place_of_a_closed_stream() -> None:
    done = _run("plan --nope 2>&- <&-", stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (2, "")
