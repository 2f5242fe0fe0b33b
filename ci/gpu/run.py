"""Run the GPU tests on a box without a package index, and bring back one bundle.

    python3 ci/gpu/run.py ARCHIVE --out DIR --slice 6 --timeout 1500

Unpacks the archive of ci/gpu/pack.py once, runs the lane (all of tests/gpu that is not slow, in one
pytest session) or the sessions asked for, and writes DIR/bundle.tar.gz: junit.xml, each session's
output and engine logs, figures.jsonl, machine.json and evidence.json. The exit code is pytest's, or
124 when the time was over. Standard library only; the box brings torch, transformers and pytest.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType

import deadline
import evidence
import machine
import sessions
import unpacked
from failures import GpuError, explain_os_error, last_lines

_CHECKOUT = Path(__file__).resolve().parent.parent.parent
_BUNDLE = "bundle.tar.gz"
_MAKE = """
import sys
from harness import models
models.make("kimi-k2.5-slice", sys.argv[1], layers=int(sys.argv[2]), architecture=sys.argv[3])
"""


def _say(text: str) -> None:
    print(f"gpu run: {text}", file=sys.stderr, flush=True)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line; what follows ``--`` is pytest's."""
    words = list(arguments)
    cut = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(
        description="Run the GPU tests with an archive of ci/gpu/pack.py.",
        epilog="What follows -- goes to every pytest session.",
    )
    parser.add_argument("archive", type=Path)
    parser.add_argument("--out", type=Path, required=True, help=f"folder for {_BUNDLE}")
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--model", type=Path, help="checkpoint folder; default: a tiny one")
    model.add_argument(
        "--slice", type=int, metavar="LAYERS", help="make kimi-k2.5-slice with so many layers"
    )
    parser.add_argument("--architecture", choices=["plain", "wrapper"], default="wrapper")
    parser.add_argument(
        "--session",
        action="append",
        default=[],
        metavar='"ARGS"',
        help="a pytest session with these arguments, may be given several times; "
        f"default: {sessions.LANE}",
    )
    parser.add_argument(
        "--timeout", type=float, default=3000.0, metavar="S", help="seconds for the whole run"
    )
    parser.add_argument(
        "--python", type=Path, default=Path(sys.executable), help="interpreter with torch, pytest"
    )
    parser.add_argument(
        "--site", type=Path, default=unpacked.default_home(), help="where archives are unpacked"
    )
    parser.add_argument("--commit", help="the checkout's commit, where git cannot say it")
    parser.add_argument("--what", help="one sentence for evidence.json")
    given = parser.parse_args(words[:cut])
    given.pytest = words[cut + 1 :]
    given.command = shlex.join(_shown(words))
    return given


def _shown(words: Sequence[str]) -> list[str]:
    """Return the command line as evidence tells it: paths of the machine by their last part."""
    shown = [Path(word).name if word.startswith("/") else word for word in words]
    return ["python3", "ci/gpu/run.py", *shown]


def model_in_words(given: argparse.Namespace) -> str:
    """Return what the tests ran on."""
    if given.slice is not None:
        return f"kimi-k2.5-slice, {given.architecture}, {given.slice} layers"
    return given.model.name if given.model else "the plugin's tiny model"


def make_model(given: argparse.Namespace, setting: sessions.Setting, work: Path) -> Path | None:
    """Return the model's folder, made here where a slice is asked for; None for the tiny one.

    Raises:
        GpuError: It could not be made.
    """
    if given.slice is None:
        return given.model.absolute() if given.model else None
    folder, output = work / "model", work / "model.txt"
    made = [str(folder), str(given.slice), given.architecture]
    code = deadline.run(
        [str(setting.python), "-c", _MAKE, *made],
        output=output,
        until=setting.until,
        cwd=setting.checkout,
        env=setting.environment,
        grace=0.0,
    )
    if code:
        raise GpuError(
            "gpu.no-model",
            expected=f"{model_in_words(given)} to be made",
            found=f"exit code {code}: {last_lines(output.read_text(errors='replace'))}",
            where="harness.models.make",
            next="see that the box's Python is the pack's, and --timeout is long enough",
        )
    return folder


def run(given: argparse.Namespace, checkout: Path = _CHECKOUT) -> int:
    """Run the sessions and write the bundle; return the exit code.

    Raises:
        GpuError: No session could be started; there is no bundle then, also none of before.
    """
    until = time.monotonic() + given.timeout
    given.out.mkdir(parents=True, exist_ok=True)
    target = given.out.absolute() / _BUNDLE
    target.unlink(missing_ok=True)
    chosen = sessions.choose(given.session, given.pytest)
    before = machine.gpus()
    with (
        tempfile.TemporaryDirectory(prefix="harness-gpu-") as name,
        tempfile.TemporaryDirectory(prefix="harness-gpu-", dir=sessions.scratch_parent()) as spool,
    ):
        work = Path(name)
        site = unpacked.unpack(given.archive, given.site.absolute())
        interpreter = given.python.absolute()  # a link selects its environment: not resolved
        python = unpacked.write_wrapper(work / "python", interpreter, site)
        unpacked.compile_all(interpreter, site, until)
        found = [str(checkout), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(found)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # no process must compile again
        versions = machine.versions(python, environment)
        pack = {"sha256": unpacked.hash_of(given.archive), **unpacked.facts(site)}
        unpacked.check_python(pack, versions.get("python", ""), interpreter)
        setting = sessions.Setting(python, checkout, environment, None, until)
        setting = replace(setting, model=make_model(given, setting, work))
        _say(f"{model_in_words(given)}; {len(chosen)} sessions; {len(before)} GPUs; {site}")
        outcomes = sessions.run(chosen, setting, work / "sessions", Path(spool))
        seen = evidence.Seen(
            what=given.what or f"tests/gpu on {model_in_words(given)}",
            model=model_in_words(given),
            command=given.command,
            commit=given.commit or machine.commit(checkout),
            pack=pack,
            versions=versions,
            before=before,
            after=machine.gpus(),
        )
        size = evidence.write(target, outcomes, seen)
        for one in outcomes:
            _say(f"{one.session.name}: " + _end_of(one))
    _say(f"{target}: {size} bytes")
    return sessions.exit_code(outcomes)


def _end_of(one: sessions.Outcome) -> str:
    if one.code is None:
        return "not started"
    text = one.output.read_text(errors="replace")
    return f"exit code {one.code}\n            {last_lines(text, 12)}"


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    given = parse(sys.argv[1:] if arguments is None else arguments)
    # Whoever gives the box for some minutes ends a command by SIGTERM: bundle what there is.
    signal.signal(signal.SIGTERM, _stop)
    try:
        return run(given)
    except GpuError as failure:
        print(failure, file=sys.stderr)
        return 3
    except OSError as error:
        print(explain_os_error(error, given.out), file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        _say("interrupted before the tests; nothing was written")
        return 130


if __name__ == "__main__":
    sys.exit(main())
