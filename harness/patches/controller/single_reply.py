"""One worker's reply is bare, and the generator takes the first of it."""

from __future__ import annotations

from typing import Any

from harness.patches._judge import by_probe, method
from harness.patches._modules import GENERATOR
from harness.patches._patch import Change, Patch, Process
from harness.patches._state import needed, obsolete
from harness.seams import Call

_CALL = Call(positional=1, keywords=("unique_reply_rank",))


def _make(original: Any) -> Any:
    def collective_rpc(self: Any, method: Any, *args: Any, **arguments: Any) -> Any:
        reply = original(self, method, *args, **arguments)
        # The only call of the generator that asks one worker; vLLM's own keep their bare reply.
        return [reply] if method == "_get_captured_states" else reply

    return collective_rpc


PATCH = Patch(
    id="single-reply",
    process=Process.CONTROLLER,
    seam="executor.collective_rpc",
    module=GENERATOR,
    changes=(Change("MultiprocExecutor.collective_rpc", _make),),
    summary="Hands the generator a list of one, whose first element it takes.",
    fault="RuntimeError: Boolean value of Tensor with more than one value is ambiguous",
    silent=False,
    judge=by_probe(
        "collective-rpc.single-reply",
        {"bare": needed("the reply is bare"), "list": obsolete("the reply is a list of one")},
        also=method("executor.collective_rpc", _CALL, "the reply is bare"),
    ),
    releases=">=0.11.1",
    retire_when="speculators 0.3 is no longer used: 0.4.0 takes the reply itself",
    upstream="vLLM 0.11.1, vllm/v1/executor/multiproc_executor.py",
)
