"""The engine child: one vLLM ``LLM`` behind the wire. ``python -m harness.inside.engine``.

Ops: ``configure``, ``load``, ``canary``, ``extract``, ``plain``, ``held``. The parent chooses
every setting; this side starts the engine, asserts that the settings were kept and hands rows
over by file. It never decides whether a figure is good enough: it reports figures.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.inside.deaths import watch_children
from harness.inside.resolved import read_settings, require_kept, versions
from harness.inside.results import Results
from harness.inside.window import Wave, Window, run_waves, takes_waves
from harness.inside.wire import Emit, OpError, serve

_LAST_LINES_S = 5.0
FAR = 1e30
"""Stands for an error that is not a finite number."""


class Engine:
    """The loaded engine and its spool."""

    def __init__(self) -> None:
        self._llm: Any = None
        self._results: Results | None = None
        self._spool = Path()
        self._columns: list[int] = []
        self._probe: list[int] | None = None
        self._final = 0
        self._budget = 0
        self._patched = False
        self._beside: Results | None = None

    def load(self, params: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Start the engine and assert what it resolved.

        Params:
            engine_args: Keyword arguments of ``vllm.LLM``.
            expect: Dotted names in the resolved ``VllmConfig`` -> value (compared as text).
            spool: Folder of the spool.
            capture: ``native``, ``patched`` or ``none``.
            beside: Folder into which the patched capture writes the same requests as well, in
                the same forward passes; for a comparison of the two, not in extraction.
            columns: Engine columns in file order.
            final: The engine column of depth L.
            engine_depths: What the model must say it captures; empty for no capture.

        Raises:
            OpError: ``engine.setting-not-kept``, ``engine.capture-not-kept``.
        """
        started = time.monotonic()
        if self._llm is not None:
            raise OpError(
                "engine.loaded-twice",
                expected="one load in a process",
                found="a second load",
                where="op load",
                next="start another host process for another engine",
            )
        from vllm import LLM

        imported = time.monotonic()
        watch_children()
        self._llm = LLM(**params["engine_args"])
        config = self._llm.llm_engine.vllm_config
        resolved = read_settings(config, params.get("expect", {}))
        require_kept(params.get("expect", {}), resolved)
        self._spool = Path(params.get("spool", "."))
        self._columns = list(params.get("columns", []))
        self._final = int(params.get("final", 0))
        self._budget = config.scheduler_config.max_num_batched_tokens
        self._patched = params.get("capture") == "patched"
        beside = params.get("beside")
        depths = list(params.get("engine_depths", []))
        if self._patched or beside:
            asked = [depths[column] for column in self._columns]
            folder, threads = beside or str(self._spool), int(params.get("writer_threads", 4))
            args = (asked, depths[self._final], folder, threads)
            self._llm.collective_rpc("hs_capture", args=args)
        self._beside = Results(Path(beside)) if beside else None
        workers = self._llm.collective_rpc("hs_describe")
        self._check_capture(workers, depths)
        self._probe = None if self._final in self._columns else [self._final]
        self._results = Results(self._spool)
        return {
            "versions": versions(),
            "resolved": resolved,
            "workers": workers,
            "seconds": {
                "import": round(imported - started, 2),
                "load": round(time.monotonic() - imported, 2),
            },
        }

    def configure(self, params: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Let vLLM build its own configuration for a model, without weights or workers.

        Params: as :meth:`load`, of which ``engine_args`` and ``expect`` are read.

        Returns:
            ``resolved``, and ``problem``: what vLLM refused, or None.
        """
        from vllm.engine.arg_utils import EngineArgs

        try:
            config = EngineArgs(**params["engine_args"]).create_engine_config()
        except Exception as error:  # any refusal is the answer
            return {"resolved": {}, "problem": f"{type(error).__name__}: {error}"}
        return {"resolved": read_settings(config, params.get("expect", {})), "problem": None}

    @staticmethod
    def _check_capture(workers: list[dict[str, Any]], depths: Sequence[int]) -> None:
        for worker in workers:
            if depths and sorted(worker["capturing"]) != list(depths):
                raise OpError(
                    "engine.capture-not-kept",
                    expected=f"the model captures depths {list(depths)}",
                    found=str(worker["capturing"]),
                    where=f"worker {worker['pid']}, {worker['decoder']}",
                    next="this vLLM names layers in another way; run `harness doctor --model ...`",
                )

    def canary(self, params: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Run known prompts through capture, witness and head; report figures.

        Params:
            prompts: Lists of token ids; no two have one token at one position.
            depths: Depth of each file column.
            deadline_s: Limit for the files to be written.

        Returns:
            ``prompts``: for each its ``tokens``, ``depths`` (see ``witness.compare``) and
            ``logprobs`` (``max_err``, ``mean_err`` over the prompt).
        """
        depths = list(params["depths"])
        keys = [f"canary-{number}" for number in range(len(params["prompts"]))]
        samples = [
            {"key": key, "input_ids": ids, "check": True}
            for key, ids in zip(keys, params["prompts"], strict=True)
        ]
        paths = [str(self._spool / f"{key}.safetensors") for key in keys]
        try:
            self._rpc("hs_arm", (sorted({*depths, *params.get("also", [])}),))
            outputs = self._generate(samples)
            lines = self._collect(keys, float(params["deadline_s"]))
            for key in keys:
                _raise_failed(lines[key])
            columns = [
                self._rpc("hs_compare", (path, sample["input_ids"], depths))
                for path, sample in zip(paths, samples, strict=True)
            ]
            # Rebuilding runs the final norm as well: the witness must not see that.
            self._rpc("hs_disarm", ())
            report = [
                {
                    "tokens": len(sample["input_ids"]),
                    "depths": seen,
                    "logprobs": self._logprobs(key, sample["input_ids"], outputs[key]),
                    "faults": lines[key]["faults"],
                }
                for key, sample, seen in zip(keys, samples, columns, strict=True)
            ]
        finally:
            self._rpc("hs_disarm", ())
            for key in keys:
                self._discard(key)
        return {"prompts": report}

    def extract(self, params: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Capture a batch; one event ``sample`` for each, as its file gets whole.

        Params:
            samples: ``key``, ``input_ids``, ``check`` (also rebuild the log-probabilities).
            deadline_s: Limit for the files after the last forward pass.
        """
        samples: list[dict[str, Any]] = params["samples"]
        checked = {s["key"]: s["input_ids"] for s in samples if s.get("check")}
        sizes = {s["key"]: len(s["input_ids"]) for s in samples}
        held: dict[str, dict[str, Any]] = {}
        failure: list[BaseException] = []
        over = threading.Event()
        window = Window(self._budget)

        def forward() -> None:
            try:
                assert self._results is not None
                limit = float(params["batch_deadline_s"])
                waiting = self._results.collect(sizes, deadline_s=limit, over=over.is_set)
                for line in waiting:
                    window.written(sizes[line["key"]])
                    if line["key"] in checked and "error" not in line:
                        held[line["key"]] = line
                    else:
                        emit("sample", **line)
            except BaseException as error:
                failure.append(error)
                window.open()

        started = time.monotonic()
        tail = threading.Thread(target=forward, name="hs-tail", daemon=True)
        tail.start()
        try:
            outputs = self._generate(samples, window)
            computed = time.monotonic()
            tail.join(timeout=float(params["deadline_s"]))
        finally:
            # Left alone it would take the lines of the next batch.
            over.set()
            tail.join(timeout=_LAST_LINES_S)
        if tail.is_alive() or failure:
            raise OpError(
                "engine.sample-not-written",
                expected=f"{len(samples)} samples written within {params['deadline_s']} s",
                found=str(failure[0]) if failure else "some are still missing",
                where=str(self._spool),
                next="look at the engine's log; a full or slow disk is the usual cause",
            )
        if self._beside is not None:
            for line in self._beside.collect(sizes, deadline_s=float(params["deadline_s"])):
                _raise_failed(line)
        for key, ids in checked.items():
            if key in held:
                emit("sample", **held[key], logprobs=self._logprobs(key, ids, outputs[key]))
                self._discard(f"{key}.probe")
        return {
            "seconds": round(time.monotonic() - started, 4),
            "generate_seconds": round(computed - started, 4),
        }

    def plain(self, params: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Prefill prompts without capture, for a ratio of speeds in one run.

        Returns:
            ``seconds``: one figure a repeat, the warm-up left out; ``tokens`` a repeat.
        """
        prompts = [{"prompt_token_ids": list(ids)} for ids in params["prompts"]]
        seconds = []
        self._rpc("hs_pause", (True,))
        try:
            for _ in range(int(params.get("repeats", 3)) + 1):
                started = time.monotonic()
                self._llm.generate(prompts, _sampling(None, False), use_tqdm=False)
                seconds.append(time.monotonic() - started)
        finally:
            self._rpc("hs_pause", (False,))
        return {"seconds": seconds[1:], "tokens": sum(len(ids) for ids in params["prompts"])}

    def held(self, params: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Tell what each worker keeps of requests; see ``WorkerExtension.hs_held``."""
        return {"workers": self._llm.collective_rpc("hs_held")}

    def _generate(
        self, samples: list[dict[str, Any]], window: Window | None = None
    ) -> dict[str, Any]:
        """Run a batch; returns the engine's output by key.

        Args:
            samples: See :meth:`extract`.
            window: The pace at which they are handed over; None for all at once.
        """
        if window is None or not takes_waves(self._llm):
            outputs = self._llm.generate(*self._requests(samples), use_tqdm=False)
        else:
            waves = window.waves(samples, lambda sample: len(sample["input_ids"]))
            outputs = run_waves(self._llm, map(self._requests, waves))
        return {s["key"]: output for s, output in zip(samples, outputs, strict=True)}

    def _requests(self, samples: list[dict[str, Any]]) -> Wave:
        """Return prompts and their sampling parameters, as vLLM takes them."""
        sampling = []
        for sample in samples:
            check = bool(sample.get("check"))
            hs: dict[str, Any] = {"key": sample["key"], "columns": self._columns}
            if check and self._probe is not None:
                hs["probe"] = self._probe
            # Native capture hears of a request through the connector, patched in the worker.
            extra = {} if self._patched else {"kv_transfer_params": {"hs": hs}}
            if self._patched or self._beside is not None:
                extra["hs"] = hs
            sampling.append(_sampling(extra, check))
        return [{"prompt_token_ids": list(s["input_ids"])} for s in samples], sampling

    def _logprobs(self, key: str, ids: list[int], output: Any) -> dict[str, Any]:
        """Compare the engine's own prompt log-probabilities with the rebuilt ones."""
        if len(ids) < 2:
            return {"max_err": 0.0, "mean_err": 0.0, "tokens": 0}
        name, column = key, self._columns.index(self._final) if self._probe is None else 0
        if self._probe is not None:
            name = f"{key}.probe"
            self._collect([name], 60.0) if not (
                self._spool / f"{name}.safetensors"
            ).exists() else None
        own = [
            entry[token].logprob
            for entry, token in zip(output.prompt_logprobs[1:], ids[1:], strict=True)
        ]
        rebuilt = self._rpc(
            "hs_logprobs", (str(self._spool / f"{name}.safetensors"), column, ids[1:])
        )
        errors = [abs(a - b) for a, b in zip(own, rebuilt or (), strict=False)]
        # NaN compares false with everything, so max() could lose it; the wire carries no infinity.
        errors = [error if error < FAR else FAR for error in errors]
        errors += [FAR] * (len(own) - len(errors))  # of rows that the file lacks
        return {
            "max_err": max(errors),
            "mean_err": sum(errors) / len(errors),
            "tokens": len(errors),
        }

    def _collect(self, keys: list[str], deadline_s: float) -> dict[str, dict[str, Any]]:
        assert self._results is not None
        return {line["key"]: line for line in self._results.collect(keys, deadline_s=deadline_s)}

    def _rpc(self, method: str, args: tuple[Any, ...]) -> Any:
        """Ask every worker; the first answer that is not None."""
        answers = self._llm.collective_rpc(method, args=args)
        return next((answer for answer in answers if answer is not None), None)

    def _discard(self, key: str) -> None:
        for name in (f"{key}.safetensors", f"{key}.probe.safetensors"):
            (self._spool / name).unlink(missing_ok=True)


def _sampling(extra: dict[str, Any] | None, logprobs: bool) -> Any:
    from vllm import SamplingParams

    return SamplingParams(
        max_tokens=1,
        temperature=0.0,
        detokenize=False,
        prompt_logprobs=0 if logprobs else None,
        extra_args=extra,
    )


def _raise_failed(line: dict[str, Any]) -> None:
    if "error" in line:
        raise OpError(
            "engine.spool-failed",
            expected="a written sample",
            found=line["message"],
            where=line["key"],
            next="free space or choose another --out, then run the same command again",
        )


def main() -> None:
    """Serve the ops until the parent says shutdown or goes away."""
    engine = Engine()
    serve(
        {
            "configure": engine.configure,
            "load": engine.load,
            "canary": engine.canary,
            "extract": engine.extract,
            "plain": engine.plain,
            "held": engine.held,
        }
    )
    # vLLM's own end waits for its processes one after another; the reaper ends them all.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
