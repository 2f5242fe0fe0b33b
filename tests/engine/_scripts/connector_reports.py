"""Prints what our connector reports as sent, on a rank that does not write.

In a process of its own: the base class needs vllm imported.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from harness.inside import connector


def main() -> None:
    base: Any = connector.stock.ExampleHiddenStatesConnector
    # As 0.26 does: every finished request counts as sent.
    base.get_finished = lambda self, finished: (set(finished), None)
    made: Any = object.__new__(connector.SpoolConnector)
    made._to_report, made._spool, made._is_tp_rank_zero = set(), None, False
    made._step = connector._Step(made._copy)
    made._submit_async_write(SimpleNamespace(req_id="saved"))
    said = [made.get_finished({"saved", "plain"}), made.get_finished({"saved"})]
    print(json.dumps([[None if part is None else sorted(part) for part in one] for one in said]))


if __name__ == "__main__":
    main()
