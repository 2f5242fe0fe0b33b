"""Figures that a GPU run brought back, read as baselines to be.

A throughput test prints one JSON line with an object ``baseline``, as a baseline's file holds it.
``ci/gpu/run.py`` gathers such lines into ``figures.jsonl`` and ``evidence.json`` of its bundle.
"""

from __future__ import annotations

import json
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from harness.baseline._series import Series, series
from harness.baseline.entry import Baseline
from harness.baseline.key import Key
from harness.errors import HarnessError, UsageError

LABEL: Final = "baseline"
"""Name of the object in a line of figures."""

_FIGURES = "figures.jsonl"
_RATES = {"files_s": "files_tok_per_s", "plain_s": "plain_tok_per_s"}


def read_source(path: Path) -> tuple[Baseline, ...]:
    """Return the baselines to be in a file; whether each may be one is not asked here.

    Args:
        path: ``figures.jsonl``, ``evidence.json``, or the ``bundle.tar.gz`` that holds both.

    Raises:
        UsageError: ``baseline.no-source``: it cannot be read; ``baseline.nothing-to-record``:
            it holds none; ``baseline.twice``: two are of one key.
    """
    try:
        found = tuple(Baseline.from_json(body) for body in _bodies(path))
    except (OSError, ValueError, EOFError, tarfile.TarError, zlib.error) as error:
        raise UsageError(
            "baseline.no-source",
            expected="figures.jsonl, evidence.json or bundle.tar.gz of a GPU run",
            found=str(error),
            where=str(path),
            next="harness baseline record --help",
        ) from error
    if not found:
        raise UsageError(
            "baseline.nothing-to-record",
            expected=f"a line of figures with an object {LABEL!r}",
            found="none",
            where=str(path),
            next="run tests/gpu/test_throughput.py, which prints them",
        )
    keys = [each.key for each in found]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise UsageError(
            "baseline.twice",
            expected="one set of runs a key",
            found=f"{keys.count(twice[0])} of {twice[0]}",
            where=str(path),
            next="take one session's lines into a file of their own",
        )
    return found


def read_evidence(path: Path) -> tuple[Baseline, ...]:
    """Return what an evidence file has of throughput, also where it is from before baselines.

    Older files tell seconds a run and no whole key, so nothing of them can be a floor.

    Raises:
        ValueError: It is broken.
        OSError: It cannot be read.
    """
    body = json.loads(path.read_text("utf-8"))
    if not isinstance(body, dict):
        return ()
    whole = [Baseline.from_json(each) for each in _in_evidence(body)]
    return (*whole, *_older(body, path.name))


def _bodies(path: Path) -> Iterator[Mapping[str, Any]]:
    if path.name.endswith((".tar.gz", ".tgz")):
        yield from _in_lines(_unpack(path))
    elif path.suffix == ".jsonl":
        yield from _in_lines(path.read_text("utf-8"))
    else:
        body = json.loads(path.read_text("utf-8"))
        if not isinstance(body, dict):
            raise ValueError("no JSON object")
        yield from _in_evidence(body)


def _unpack(path: Path) -> str:
    with tarfile.open(path) as tar:
        for member in tar:
            file = tar.extractfile(member) if Path(member.name).name == _FIGURES else None
            if file is not None:
                return file.read().decode()
    raise ValueError(f"no {_FIGURES} in it")


def _in_lines(text: str) -> Iterator[Mapping[str, Any]]:
    for line in filter(str.strip, text.splitlines()):
        yield from _in_line(json.loads(line))


def _in_evidence(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    runs = body.get("runs", ())
    for run in runs if isinstance(runs, list) else ():
        for line in run.get("figures", ()) if isinstance(run, dict) else ():
            yield from _in_line(line)


def _in_line(line: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the baseline of one line: the figures themselves, or a test's name beside them."""
    figures = line.get("figures", line) if isinstance(line, dict) else None
    found = figures.get(LABEL) if isinstance(figures, dict) else None
    # Other tests tell of baselines of their own, such as memory before a load.
    if isinstance(found, dict) and {"schema", "key"} & found.keys():
        yield found


def _older(body: Mapping[str, Any], name: str) -> Iterator[Baseline]:
    timed = body.get("throughput")
    if not isinstance(timed, dict):
        return
    tokens, versions = timed.get("tokens"), body.get("versions", {})
    count, _, card = str(body.get("hardware", "")).split(",")[0].partition(" x ")
    for run in timed.get("runs", ()):
        figures = dict(_rates(run, tokens))
        if not figures:
            continue
        threads = run.get("writer_threads")
        yield Baseline(
            key=Key(
                gpu=card or None,
                gpus=int(count) if count.isdecimal() else None,
                tensor_parallel_size=None,
                vllm=versions.get("vllm"),
                torch=versions.get("torch"),
                speculators=versions.get("speculators"),
                model=None,
                capture=run.get("capture"),
                dtype=None,
                token_budget=None,
                workload=f"{timed.get('prompts')} prompts, {tokens} tokens",
            ),
            figures=figures,
            date=str(body.get("date", "")),
            source=name,
            note=f"{threads} writer threads" if threads else "",
        )


def _rates(run: Mapping[str, Any], tokens: Any) -> Iterator[tuple[str, Series]]:
    for field, name in _RATES.items():
        seconds = run.get(field)
        if isinstance(seconds, list) and isinstance(tokens, int):
            try:
                yield name, series(name, [tokens / each for each in seconds])
            except (HarnessError, TypeError, ZeroDivisionError):
                continue
