"""A small publish loop that is killed, or whose disk fails, at every step it takes.

Run as a program: it forks one child for each point, so that the tests pay for one start. A step
is a call that changes the disk: opening for writing, writing, cutting, syncing, renaming,
removing, making or removing a folder.
"""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.dataset.folder import OutputFolder
from harness.dataset.manifest import read_manifest
from harness.dataset.prompt_set import PromptSet
from harness.dataset.verify import verify
from harness.errors import HarnessError
from tests.unit.datasets import encode_sample, make_hidden, make_prompts, publish, run_info

_CHANGES = {"os.rename", "os.remove", "os.truncate", "os.mkdir", "os.rmdir"}
_NEEDS_ROOM = {"open", "pwrite", "os.mkdir", "fsync"}


class Steps:
    """Counts the steps of this process and acts at one of them."""

    def __init__(self, under: Path, act: Callable[[int, str], None]) -> None:
        self.count = 0
        # The spool is written by the engine's side, which reports its own errors.
        self._under, self._not = f"{under}/", f"{under}/.spool/"
        self._act = act
        sys.addaudithook(self._audit)
        os.fsync = self._before("fsync", os.fsync)
        os.pwrite = self._before("pwrite", os.pwrite)

    def _step(self, name: str) -> None:
        self.count += 1
        self._act(self.count, name)

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event in _CHANGES:
            self._step(event)
        elif event == "open" and isinstance(args[0], (str, os.PathLike)):
            path, flags = str(args[0]), args[2]
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if writes and path.startswith(self._under) and not path.startswith(self._not):
                self._step(event)

    def _before(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*args: Any) -> Any:
            try:
                self._step(name)
            except OSError as error:
                if (
                    name == "pwrite" and error.errno == errno.ENOSPC
                ):  # a disk gets full in the middle of a write
                    fd, data, offset = args
                    call(fd, data[: len(data) // 2], offset)
                raise
            return call(*args)

        return stepped


def run(out: Path, prompts: PromptSet, log: Path) -> None:
    """One session of the loop; each publish that returned is noted in the log."""
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with OutputFolder.open(out, run_info(prompts), prompts) as folder:
        for index in folder.missing:
            os.write(fd, f"begin {index}\n".encode())
            publish(folder, prompts, index)
            os.write(fd, f"done {index}\n".encode())
        folder.finish(seconds=0.1)
    os.close(fd)


def in_child(work: Callable[[], None], *, kill_after: float | None = None) -> tuple[bool, str]:
    """Run work in a fork; return whether it was killed, and the error it reported."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 0
        try:
            work()
        except HarnessError as error:
            os.write(write, error.failure.id.encode())
        except BaseException:
            os.write(write, traceback.format_exc()[-3000:].encode())
            code = 1
        os._exit(code)
    os.close(write)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(pid, signal.SIGKILL)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status), text


def final_indices(out: Path) -> list[int]:
    return [int(path.stem.removeprefix("hs_")) for path in out.glob("hs_*.safetensors")]


def check_files(out: Path, prompts: PromptSet) -> None:
    """Whatever has a final name is whole, and each manifest line is true."""
    for path in out.glob("hs_*"):
        index = int(path.stem.removeprefix("hs_"))
        good = encode_sample(
            make_hidden(prompts[index].tokens, 1000 + index), prompts[index].token_list()
        )
        assert path.read_bytes() == good, f"{path} is not whole"


def check_end(out: Path, prompts: PromptSet, log: Path) -> int:
    """Everything is there once, and nothing was made again after its publish had returned."""
    report = verify(out, workers=1)
    assert report.ok, report.bad
    assert [line.index for line in read_manifest(out).lines] == list(range(len(prompts)))
    events = [line.split() for line in log.read_text().splitlines()]
    done: set[str] = set()
    redone = 0
    for what, index in events:
        assert not (what == "begin" and index in done), f"sample {index} was made again"
        redone += what == "begin"
        if what == "done":
            done.add(index)
    return redone - len(prompts)


def kill_at_each_step(base: Path, prompts: PromptSet, dice: random.Random) -> dict[str, Any]:
    points, again = 0, 0
    while True:
        points += 1
        out, log = base / f"kill{points}", base / f"kill{points}.log"

        def die(at: int) -> Callable[[int, str], None]:
            def act(count: int, name: str) -> None:
                if count == at:
                    os.kill(os.getpid(), signal.SIGKILL)

            return act

        def session(at: int, out: Path = out, log: Path = log) -> None:
            Steps(out, die(at))
            run(out, prompts, log)

        killed, text = in_child(lambda at=points: session(at))  # type: ignore[misc]
        assert not text, text
        if out.exists():
            check_files(out, prompts)
            # Whatever has its final name was published, also where the crash came before
            # the loop could note it: it may not be made again.
            with log.open("a") as notes:
                notes.writelines(f"done {i}\n" for i in final_indices(out))
        second = dice.randrange(1, 60)
        in_child(lambda at=second: session(at))  # type: ignore[misc]
        run(out, prompts, log)
        again += check_end(out, prompts, log)
        if not killed:
            return {"points": points - 1, "made again": again}


def kill_at_random_times(base: Path, prompts: PromptSet, dice: random.Random) -> dict[str, Any]:
    run(base / "first", prompts, base / "first.log")  # imports and warms everything
    start = time.monotonic()
    run(base / "plain", prompts, base / "plain.log")
    usual = time.monotonic() - start
    points = 0
    for number in range(4):
        out, log = base / f"random{number}", base / f"random{number}.log"

        def session(out: Path = out, log: Path = log) -> None:
            run(out, prompts, log)

        for _ in range(12):
            # From a little before the first sample to after the last.
            killed, text = in_child(session, kill_after=dice.uniform(0.2, 1.2) * usual)
            assert not text, text
            points += killed
            if out.exists():
                check_files(out, prompts)
        run(out, prompts, log)
        check_end(out, prompts, log)
    return {"points": points}


def fail_at_each_step(base: Path, prompts: PromptSet, code: int, *, stays: bool) -> dict[str, int]:
    """Let one step fail (and all later ones, if it stays so) with an error of the disk."""
    seen: dict[str, int] = {}
    reached, at = True, 0
    while reached:
        at += 1
        out, log, mark = base / f"fail{at}", base / f"fail{at}.log", base / f"fail{at}.reached"

        def session(out: Path = out, log: Path = log, mark: Path = mark, at: int = at) -> None:
            # Only steps that can fail in this way count.
            left = at

            def act(count: int, name: str) -> None:
                nonlocal left
                if code == errno.ENOSPC and name not in _NEEDS_ROOM:
                    return
                left -= 1
                if left == 0:
                    mark.touch()
                if left == 0 or (stays and left < 0):
                    raise OSError(code, os.strerror(code))

            Steps(out, act)
            run(out, prompts, log)

        killed, text = in_child(session)
        assert not killed
        assert text.startswith("dataset.") or not text, f"step {at}: {text}"
        seen[text or "no error"] = seen.get(text or "no error", 0) + 1
        if out.exists():
            check_files(out, prompts)
            manifest = read_manifest(out)
            assert not manifest.broken, f"step {at}: torn line"
            if code == errno.ENOSPC:
                # Renaming works on a full disk, so an unlisted sample can be taken back.
                assert sorted(final_indices(out)) == sorted(line.index for line in manifest.lines)
        run(out, prompts, log)
        check_end(out, prompts, log)
        reached = mark.exists()
    return seen


def main() -> None:
    base, mode = Path(sys.argv[1]), sys.argv[2]
    dice = random.Random(7)
    prompts = make_prompts(base, 4)
    if mode == "kill":
        result: dict[str, Any] = kill_at_each_step(base, prompts, dice)
    elif mode == "random":
        result = kill_at_random_times(base, make_prompts(base, 12), dice)
    else:
        result = fail_at_each_step(base, prompts, int(mode), stays=sys.argv[3] == "stays")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
