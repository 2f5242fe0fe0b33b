"""Claims about a loaded engine, and the faults that must turn each of them red.

A fault is switched on in the running workers by a file (``tests/engine/faults``), so one load
serves the whole table.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from harness.capture.protocol import Captured, Request
from harness.capture.session import EngineSession
from harness.dataset.samples import read_sample
from tests.captures import files_complete
from tests.noise import Bound, Rows, noise

FAULTS = Path(__file__).parent / "engine" / "faults"
FAULT_FILE = "HARNESS_TEST_FAULT"
PRELOAD = "seeded_faults"


@contextmanager
def fault(file: Path, **what: object) -> Iterator[None]:
    """Switch one fault on; none at the end."""
    file.write_text(json.dumps(what))
    try:
        yield
    finally:
        file.unlink()


@dataclass
class Claims:
    """What is claimed of one engine; each method raises ``AssertionError`` where it does not hold.

    Attributes:
        session: A loaded engine.
        bound: How far rows of one prompt may be apart in two batches, by norm.
        slack: How much longer than before files may take.
        late: How much longer than before the fault that slows the writer lets files take.
    """

    session: EngineSession
    bound: Bound
    slack: float = 0.12
    late: float = 0.2
    _calls: int = 0
    _usual: float = 0.0
    _alone: list[Rows] = field(default_factory=list)

    def every_depth_equals_hooks_in_the_same_forward(self) -> None:
        found = [f for f in self.session.prove() if f.check == "witness"]
        assert not found, found[0]

    def depth_l_rebuilds_the_engines_log_probabilities(self) -> None:
        found = [f for f in self.session.prove() if f.check == "logprobs"]
        assert not found, found[0]

    def every_token_has_its_row(self) -> None:
        for prompt, file in zip(self.prompts(), self.run(self.prompts()), strict=True):
            rows = len(read_sample(file.path).hidden)
            file.path.unlink()
            assert rows == len(prompt), f"{rows} rows of {len(prompt)} tokens"

    def a_batch_gives_each_prompt_its_own_rows(self) -> None:
        prompts = self.prompts()[:4]
        self._alone = self._alone or [self.rows([prompt])[0] for prompt in prompts]
        plan = self.session.spec.plan
        assert plan is not None
        found = noise(zip(self._alone, self.rows(prompts), strict=True), plan.depths)
        assert all(one.within(self.bound) for one in found), max(found, key=lambda one: one.sample)

    def files_keep_their_pace(self) -> None:
        seconds = self.pace()
        self._usual = self._usual or seconds
        assert seconds <= self._usual * (1 + self.slack), f"{seconds / self._usual:.2f} of before"

    def pace(self) -> float:
        """Median seconds of a batch's files."""
        prompts = self.prompts() * 8
        return statistics.median(files_complete(self.session, prompts) for _ in range(5))

    def prompts(self) -> list[list[int]]:
        """Eight prompts, two of each length."""
        random = np.random.default_rng(11)
        longest = self.session.spec.max_prompt_tokens
        top = self.session.spec.vocab_size // 2
        lengths = [min(length, longest) for length in (512, 512, 40, 40, 257, 257, 120, 120)]
        return [random.integers(0, top, length).tolist() for length in lengths]

    def run(self, prompts: list[list[int]]) -> list[Captured]:
        """Send one batch; its files in the order of the prompts."""
        self._calls += 1
        requests = [Request(f"m{self._calls}-{n}", ids) for n, ids in enumerate(prompts)]
        done: dict[str, Captured] = {}
        self.session.run(requests, lambda sample: done.update({sample.key: sample}))
        return [done[request.key] for request in requests]

    def rows(self, prompts: list[list[int]]) -> list[Rows]:
        """Send one batch and read its rows."""
        found = []
        for file in self.run(prompts):
            found.append(read_sample(file.path).to_float32())
            file.path.unlink()
        return found


@dataclass(frozen=True)
class Mutation:
    """One fault and the claim that must not survive it."""

    name: str
    claim: Callable[[Claims], None]
    fault: dict[str, Any]


def mutations(claims: Claims) -> list[Mutation]:
    """Every fault of the table, fitted to the engine's depths."""
    plan = claims.session.spec.plan
    assert plan is not None
    last = plan.num_layers
    free = next(depth for depth in range(last - 1, 0, -1) if depth not in plan.depths)
    rows = sum(map(len, claims.prompts())) * 8
    # One file after the other, and all of them in more time than the engine takes: many threads
    # that wait beside one another, or beside a forward pass, would cost nobody anything.
    slow = claims.pace() * (1 + claims.late) / rows
    return [
        Mutation(
            f"depth {depth} is really {free}",
            Claims.every_depth_equals_hooks_in_the_same_forward,
            {"kind": "shift", "from": depth, "to": free},
        )
        for depth in plan.depths
    ] + [
        Mutation(
            "the final norm is applied twice",
            Claims.depth_l_rebuilds_the_engines_log_probabilities,
            {"kind": "doubled-norm"},
        ),
        Mutation("a row is lost", Claims.every_token_has_its_row, {"kind": "drop-row"}),
        Mutation(
            "two prompts have each other's rows",
            Claims.a_batch_gives_each_prompt_its_own_rows,
            {"kind": "swap-any"},
        ),
        Mutation(
            f"the writer is {claims.late:.0%} slower than the engine",
            Claims.files_keep_their_pace,
            {"kind": "slow", "seconds_per_row": slow},
        ),
    ]


def survivors(claims: Claims, file: Path) -> list[str]:
    """Switch each fault on in turn; print the table; name what turned nothing red.

    Raises:
        AssertionError: A claim does not hold without any fault.
    """
    table = mutations(claims)
    for claim in dict.fromkeys(mutation.claim for mutation in table):
        claim(claims)
    alive = []
    for mutation in table:
        with fault(file, **mutation.fault):
            try:
                mutation.claim(claims)
            except (AssertionError, ValueError) as error:
                verdict = "red: " + " ".join(str(error).split())[:90]
            else:
                verdict = "ALIVE"
                alive.append(mutation.name)
        claims.session.require_proof()  # sound again, and the session knows it
        print(f"{mutation.name:36} {mutation.claim.__name__:52} {verdict}")
    for claim in dict.fromkeys(mutation.claim for mutation in table):
        claim(claims)
    return alive
