"""The gate against edits of a real release: what breaks is told at its seam, the rest is not.

The release is the one installed here; each edit is one change that vLLM has made, or may make.
"""

from __future__ import annotations

import ast
import re

import pytest

from tests.unit.edited import installed
from tests.unit.mutated import Break, answer_to, not_told, told_by, told_where_it_breaks
from tests.unit.surgery import (
    Edit,
    add_argument,
    add_to,
    drop,
    drop_argument,
    make_keyword_only,
    rename,
    rename_argument,
    rename_only,
    replaced,
    returns,
    set_default,
    set_field,
    swap_arguments,
)

CACHE = "vllm/config/cache.py"
SCHEDULER_CONFIG = "vllm/config/scheduler.py"
PARALLEL = "vllm/config/parallel.py"
MODEL_CONFIG = "vllm/config/model.py"
CONFIG = "vllm/config/vllm.py"
KV_TRANSFER = "vllm/config/kv_transfer.py"
KV = "vllm/v1/core/kv_cache_utils.py"
KV_INTERFACE = "vllm/v1/kv_cache_interface.py"
SCHEDULER = "vllm/v1/core/sched/scheduler.py"
OUTPUT = "vllm/v1/core/sched/output.py"
REQUEST = "vllm/v1/request.py"
EXECUTOR = "vllm/v1/executor/multiproc_executor.py"
ABSTRACT = "vllm/v1/executor/abstract.py"
WORKER = "vllm/v1/worker/gpu_worker.py"
WORKER_BASE = "vllm/v1/worker/worker_base.py"
RUNNER = "vllm/v1/worker/gpu_model_runner.py"
BATCH = "vllm/v1/worker/gpu_input_batch.py"
DEEPSEEK = "vllm/model_executor/models/deepseek_v2.py"
KIMI = "vllm/model_executor/models/kimi_k25.py"
INTERFACES = "vllm/model_executor/models/interfaces.py"
CONNECTOR = "vllm/distributed/kv_transfer/kv_connector/v1/example_hidden_states_connector.py"
CONNECTOR_BASE = "vllm/distributed/kv_transfer/kv_connector/v1/base.py"
STATE = "vllm/distributed/parallel_state.py"
LLM = "vllm/entrypoints/llm.py"
ARGUMENTS = "vllm/engine/arg_utils.py"
SAMPLING = "vllm/sampling_params.py"
ENVS = "vllm/envs.py"
POOL = "vllm/v1/core/block_pool.py"
PLATFORM = "vllm/platforms/interface.py"
LOADER = "vllm/model_executor/model_loader/base_loader.py"
NORM = "vllm/model_executor/layers/layernorm.py"
SEQUENCE = "vllm/sequence.py"
SPECULATIVE = "vllm/config/speculative.py"

BREAKS: dict[str, Break] = {
    # Names that are no longer there.
    "function renamed": Break(
        KV, rename("unify_hybrid_kv_cache_specs", "unify_specs"), "kv.unify-hybrid",
        hurts="patched", says="unify"),
    "private function renamed": Break(
        KV, rename("_get_kv_cache_groups_uniform_spec", "_uniform_groups"), "kv.groups-uniform",
        hurts="patched"),
    "function moved without a re-export": Break(
        KV, drop("get_kv_cache_config_from_groups"), "kv.config-from-groups", hurts="patched"),
    "class renamed": Break(
        EXECUTOR, rename("MultiprocExecutor", "ProcessExecutor"), "executor executor.*",
        "collective-rpc.* initialize-from-config.*", hurts="patched", says="ProcessExecutor"),
    "configuration renamed": Break(
        SCHEDULER_CONFIG, rename("SchedulerConfig", "SchedulingConfig"),
        "config.scheduler config.scheduler.*",
        "async-scheduling.* scheduler-config.* chunked-prefill.*", hurts="patched native"),
    "model class renamed": Break(
        DEEPSEEK, rename_only("DeepseekV2Model", "DeepseekTextModel"),
        "deepseek.model deepseek.model.*", "deepseek.capture* deepseek.calls",
        hurts="patched native"),
    "wrapper class renamed": Break(
        KIMI, rename("KimiK25ForConditionalGeneration", "KimiK25ForGeneration"),
        "kimi kimi.*", "kimi.* native.rows.handed-on", hurts="native"),
    "method renamed": Break(
        SCHEDULER, rename_only("Scheduler.add_request", "enqueue"),
        "scheduler.add_request", hurts="patched"),
    "worker's method renamed": Break(
        WORKER, rename("Worker.get_kv_cache_spec", "kv_cache_spec"), "worker.get_kv_cache_spec",
        hurts="patched"),
    "lookup of embeddings renamed": Break(
        DEEPSEEK, rename("DeepseekV2Model.embed_input_ids", "embed_tokens_of"),
        "deepseek.model.embed", "deepseek.calls", hurts="patched"),
    "connector's private method renamed": Break(
        CONNECTOR, rename("ExampleHiddenStatesConnector._submit_async_write", "_submit_write"),
        "connector._submit_async_write", "native.connector.rank", hurts="native",
        says="_submit_write"),
    "connector's state renamed": Break(
        CONNECTOR, replaced("self._pending_saves", "self._saves"), "connector._pending_saves",
        "native.connector.*", hurts="native"),
    "connector module's function renamed": Break(
        CONNECTOR, rename("extract_from_kv_cache", "gather_from_kv_cache"), "connector.extract",
        "native.cache.read native.saved.rows", hurts="native"),
    "group accessor renamed": Break(
        STATE, rename_only("get_tp_group", "get_tensor_group"), "distributed.get_tp_group",
        hurts="patched"),
    "rank accessor renamed": Break(
        STATE, rename_only("get_tensor_model_parallel_rank", "tensor_rank"),
        "distributed.tensor-rank", hurts="patched native"),
    "instance attribute renamed": Break(
        RUNNER, replaced("self.input_batch", "self.batch"), "runner.input_batch",
        hurts="patched"),
    "batch's attribute renamed": Break(
        BATCH, replaced("num_computed_tokens_cpu", "computed_tokens_cpu"),
        "input-batch.num_computed_tokens_cpu", hurts="patched"),
    "environment variable renamed": Break(
        ENVS, replaced("VLLM_MLA_DISABLE", "VLLM_DISABLE_MLA"), "env.VLLM_MLA_DISABLE",
        hurts="patched native"),
    "module gone": Break(
        "vllm/v1/spec_decode/extract_hidden_states.py", lambda text: "", "capture.*",
        "native.*", hurts="native"),
    # Fields and members.
    "field dropped": Break(
        CACHE, drop("CacheConfig.enable_prefix_caching"),
        "config.cache config.cache.enable_prefix_caching", "prefix-caching.default",
        hurts="patched native"),
    "field renamed": Break(
        PARALLEL, rename("ParallelConfig.worker_extension_cls", "worker_extension_class"),
        "config.parallel config.parallel.worker_extension_cls", hurts="patched native",
        says="worker_extension_class"),
    "field of the scheduler's output renamed": Break(
        OUTPUT, rename_only("SchedulerOutput.num_scheduled_tokens", "scheduled_tokens"),
        "scheduler-output.num_scheduled_tokens", hurts="patched"),
    "field became an InitVar": Break(
        SCHEDULER_CONFIG,
        replaced("    max_num_seqs: int =", "    max_num_seqs: InitVar[int] ="),
        "config.scheduler.max_num_seqs", hurts="patched native"),
    "field became required": Break(
        CACHE, set_field("CacheConfig.cache_dtype", None),
        "config.cache config.cache.cache_dtype", hurts="patched"),
    "enum member renamed": Break(
        REQUEST, rename_only("RequestStatus.FINISHED_ABORTED", "FINISHED_ABORT"),
        "request-status.FINISHED_ABORTED", hurts="patched native", says="FINISHED_ABORT"),
    "connector role renamed": Break(
        CONNECTOR_BASE, rename_only("KVConnectorRole.WORKER", "ENGINE_WORKER"),
        "connector.role.WORKER", hurts="native"),
    "engine argument renamed": Break(
        ARGUMENTS, rename_only("EngineArgs.generation_config", "generation_settings"),
        "engine-args", hurts="patched native"),
    "sampling parameter dropped": Break(
        SAMPLING, drop("SamplingParams.extra_args"),
        "sampling-params sampling-params.extra_args", hurts="patched native"),
    # Arguments.
    "new required argument of a class": Break(
        SCHEDULER, add_argument("Scheduler.__init__", "kv_events"), "scheduler",
        hurts="patched", says="kv_events"),
    "new required argument of a function": Break(
        KV, add_argument("get_kv_cache_config_from_groups", "page_size"), "kv.config-from-groups",
        hurts="patched"),
    "new required argument of a request": Break(
        REQUEST, add_argument("Request.__init__", "client"), "request", hurts="patched"),
    "new required field of a configuration": Break(
        SCHEDULER_CONFIG,
        add_to("SchedulerConfig", "fairness: InitVar[float]"),
        "config.scheduler", "scheduler-config.required", hurts="patched", says="fairness"),
    "new required argument of a constructor made by fields": Break(
        CONNECTOR, add_to("PendingSave", "step: int"), "connector.pending", hurts="native"),
    "argument dropped": Break(
        EXECUTOR, drop_argument("MultiprocExecutor.collective_rpc", "unique_reply_rank"),
        "executor.collective_rpc", "collective-rpc.single-reply", hurts="patched"),
    "argument of a method dropped": Break(
        SCHEDULER, drop_argument("Scheduler.finish_requests", "finished_status"),
        "scheduler.finish_requests", hurts="patched"),
    "keyword renamed": Break(
        DEEPSEEK, rename_argument("DeepseekV2DecoderLayer.forward", "residual", "skip"),
        "deepseek.layer.forward", hurts="patched native"),
    "keyword of the front renamed": Break(
        LLM, rename_argument("LLM.generate", "use_tqdm", "progress"), "llm.generate",
        hurts="patched native"),
    "arguments by name alone": Break(
        SCHEDULER, make_keyword_only("Scheduler.finish_requests"), "scheduler.finish_requests",
        hurts="patched"),
    "order of arguments": Break(
        SCHEDULER, swap_arguments("Scheduler.finish_requests", "request_ids", "finished_status"),
        "scheduler.finish_requests", hurts="patched"),
    "order of a connector's arguments": Break(
        CONNECTOR, swap_arguments("extract_from_kv_cache", "slot_mapping", "num_tokens"),
        "connector.extract", "native.cache.read", hurts="native"),
    "argument put first": Break(
        KV, add_argument("_get_kv_cache_groups_uniform_spec", "config", first=True),
        "kv.groups-uniform", hurts="patched"),
    "order of the model's arguments": Break(
        DEEPSEEK, swap_arguments("DeepseekV2Model.forward", "input_ids", "positions"),
        "deepseek.model.forward", "deepseek.calls", hurts="patched"),
    # The name is there, and is something else.
    "override removed": Break(
        EXECUTOR, drop("MultiprocExecutor.sample_tokens"), "executor.sample_tokens",
        hurts="patched"),
    "override of a connector removed": Break(
        CONNECTOR, drop("ExampleHiddenStatesConnector.get_finished"), "connector.get_finished",
        "native.saved.released", hurts="native"),
    "override of the scheduler removed": Break(
        SCHEDULER, drop("Scheduler.schedule"), "scheduler.schedule", hurts="patched"),
    "base class lost": Break(
        DEEPSEEK, replaced("    SupportsEagle3,\n", ""), "deepseek.causal deepseek.*",
        "deepseek.supports-eagle3 kimi.*", hurts="native"),
    "method became a property": Break(
        WORKER,
        replaced("    def get_kv_cache_spec(", "    @property\n    def get_kv_cache_spec("),
        "worker.get_kv_cache_spec", hurts="patched"),
    "function became async": Break(
        SCHEDULER, replaced("    def schedule(self", "    async def schedule(self"),
        "scheduler.schedule", hurts="patched"),
    # Defaults.
    "default flipped": Break(
        CACHE, set_field("CacheConfig.enable_prefix_caching", "False"),
        "config.cache.enable_prefix_caching config.cache", "prefix-caching.default"),
    "default of an argument flipped": Break(
        LLM, set_default("LLM.generate", "lora_request", "()"), "llm.generate"),
    "default of scheduling flipped": Break(
        SCHEDULER_CONFIG, set_field("SchedulerConfig.async_scheduling", "False"),
        "config.scheduler.async_scheduling config.scheduler", "async-scheduling.default"),
    # What comes back.
    "tuple became one value": Break(
        DEEPSEEK, returns("DeepseekV2DecoderLayer.forward", "[hidden_states]"),
        "deepseek.layer.forward", hurts="patched native"),
    "tuple grew": Break(
        CONNECTOR, returns("ExampleHiddenStatesConnector.get_finished", "(None, None, None)"),
        "connector.get_finished", hurts="native"),
    "single value became a list": Break(
        KV, returns("_get_kv_cache_groups_uniform_spec", "{'groups': kv_cache_specs}"),
        "kv.groups-uniform", hurts="patched"),
    "finished requests tell a tuple of three": Break(
        CONNECTOR, returns("ExampleHiddenStatesConnector.request_finished", "(True, None, 0)"),
        "connector.request_finished", "native.connector.* native.saved.*", hurts="native"),
    # Behaviour.
    "second phase merged": Break(
        RUNNER, replaced("self.execute_model_state = ExecuteModelState(", "state = tuple("),
        probes="execute-model.* native.rows.*", seams="", hurts="patched native"),
    "single reply is a list": Break(
        EXECUTOR, replaced("return responses[0] if output_rank is not None else responses",
                           "return list(map(id, responses))"),
        probes="collective-rpc.single-reply", hurts="patched"),
    "warm-up in another place": Break(
        ABSTRACT, replaced('self.collective_rpc("initialize_from_config"',
                           'self.start("initialize_from_config"'),
        probes="initialize-from-config.warms-up", hurts="patched"),
    "extension delegated": Break(
        WORKER_BASE, replaced("__bases__", "__mixins__"), probes="worker-extension.mixed-in",
        hurts="patched native"),
    "worker took a name of ours": Break(
        WORKER, add_to("Worker", "def hs_arm(self): ..."), probes="worker-extension.collisions",
        hurts="patched native"),
    "final depth not captured": Break(
        DEEPSEEK, replaced("if self.end_layer in self.aux_hidden_state_layers:", "if False:"),
        probes="deepseek.capture", hurts="native"),
    "final depth normed": Break(
        DEEPSEEK, replaced("aux_hidden_states.append(hidden_states + residual)",
                           "aux_hidden_states.append(self.norm(hidden_states, residual)[0])"),
        probes="deepseek.capture", hurts="native"),
    "depth counted from one": Break(
        DEEPSEEK, replaced("if idx in self.aux_hidden_state_layers:",
                           "if idx + 1 in self.aux_hidden_state_layers:"),
        probes="deepseek.capture", hurts="native"),
    "depth without its residual": Break(
        DEEPSEEK, replaced("aux_hidden_state = hidden_states + residual",
                           "aux_hidden_state = hidden_states"),
        probes="deepseek.capture", hurts="native"),
    "depth without its first row": Break(
        DEEPSEEK, replaced("aux_hidden_state[: positions.shape[0]]",
                           "aux_hidden_state[1 : positions.shape[0] + 1]"),
        probes="deepseek.capture", hurts="native"),
    "depths in another order": Break(
        DEEPSEEK, replaced("return hidden_states, aux_hidden_states",
                           "return hidden_states, aux_hidden_states[::-1]"),
        probes="deepseek.capture", hurts="native"),
    "helper told of the next depth": Break(
        DEEPSEEK,
        replaced("            if idx in self.aux_hidden_state_layers:\n",
                 "            self._maybe_add_hidden_state(\n"
                 "                aux_hidden_states, idx + 1, hidden_states, residual\n"
                 "            )\n"
                 "            if False:\n"),
        probes="deepseek.capture", hurts="native"),
    "wrapper shifts the ids": Break(
        KIMI, replaced("self.language_model.set_aux_hidden_state_layers(layers)",
                       "self.language_model.set_aux_hidden_state_layers("
                       "tuple(i + 1 for i in layers))"),
        probes="deepseek.capture", hurts="native"),
    "model drops an id": Break(
        DEEPSEEK, replaced("self.model.aux_hidden_state_layers = layers",
                           "self.model.aux_hidden_state_layers = tuple(layers[1:])"),
        probes="deepseek.capture", hurts="native"),
    "model's setter renamed under the protocol's": Break(
        DEEPSEEK, rename_only("DeepseekV2ForCausalLM.set_aux_hidden_state_layers", "set_layers"),
        probes="deepseek.capture", hurts="native"),
    "model's setter gone from under the protocol's": Break(
        DEEPSEEK, drop("DeepseekV2ForCausalLM.set_aux_hidden_state_layers"),
        probes="deepseek.capture", hurts="native"),
    "wrapper's setter renamed under the protocol's": Break(
        KIMI, rename_only("KimiK25ForConditionalGeneration.set_aux_hidden_state_layers",
                          "set_layers"),
        probes="deepseek.capture", hurts="native"),
    "model keeps its ids under another name": Break(
        DEEPSEEK, replaced("self.model.aux_hidden_state_layers = layers",
                           "self.model.hidden_state_layers = layers"),
        probes="deepseek.capture", hurts="native"),
    "depth taken on leaving a layer": Break(
        DEEPSEEK,
        replaced(
            "            hidden_states, residual = layer(\n"
            "                positions, hidden_states, residual, llama_4_scaling\n"
            "            )\n",
            "",
        ),
        probes="deepseek.capture.point deepseek.calls", hurts="patched native"),
    "every rank writes": Break(
        CONNECTOR, replaced("self._is_tp_rank_zero", "self._writes"),
        "connector._is_tp_rank_zero", "native.connector.rank", hurts="native"),
    "written at each step": Break(
        CONNECTOR, replaced("import fcntl\n", ""), probes="native.connector.write",
        hurts="native"),
    "other layout of the cache": Break(
        CONNECTOR, replaced('return "LBNHC"', 'return "NHLBC"'), probes="native.connector.layout",
        hurts="native"),
    "V1 runner can no longer be had": Break(
        CONFIG, replaced("VLLM_USE_V2_MODEL_RUNNER", "VLLM_RUNNER"), probes="runner-v2.opt-out",
        hurts="patched native"),
    "targets listed again": Break(
        SPECULATIVE,
        add_to("SpeculativeConfig.__post_init__", 'aux_hidden_states_supported = ["llama"]'),
        probes="native.targets", hurts="native"),
}  # fmt: skip

HARMLESS: dict[str, tuple[str, Edit]] = {
    "new optional argument of the scheduler": (
        SCHEDULER, add_argument("Scheduler.__init__", "trace", "None")),
    "new optional argument of a function": (
        KV, add_argument("get_kv_cache_config_from_groups", "suppress_log", "False")),
    "new optional argument of the RPC": (
        EXECUTOR, add_argument("MultiprocExecutor.collective_rpc", "priority", "0")),
    "new optional argument of a request": (
        REQUEST, add_argument("Request.__init__", "tenant", "None")),
    "new optional argument of a layer": (
        DEEPSEEK, add_argument("DeepseekV2DecoderLayer.forward", "scaling", "None")),
    "state summed the other way": (
        DEEPSEEK, replaced("hidden_states + residual", "residual + hidden_states")),
    "captured state called otherwise": (
        DEEPSEEK, lambda text: re.sub(r"\baux_hidden_state\b", "taken", text)),
    "new optional field": (CACHE, add_to("CacheConfig", "page_colour: int = 0")),
    "new optional engine argument": (ARGUMENTS, add_to("EngineArgs", "page_colour: int = 0")),
    "new method": (SCHEDULER, add_to("Scheduler", "def pause(self) -> None: ...")),
    "new method of the connector": (
        CONNECTOR, add_to("ExampleHiddenStatesConnector", "def drain(self) -> None: ...")),
    "new enum member": (REQUEST, add_to("RequestStatus", "FINISHED_CANCELLED = enum.auto()",
                                        last=True)),
    "new environment variable": (ENVS, replaced('    "VLLM_MLA_DISABLE":',
                                                '    "VLLM_NEW": lambda: 1,\n'
                                                '    "VLLM_MLA_DISABLE":')),
    "argument passed by place renamed": (
        KV, rename_argument("get_request_block_hasher", "hash_block_size", "block_size")),
    "argument passed by place renamed in a method": (
        SCHEDULER, rename_argument("Scheduler.add_request", "request", "req")),
    "comment": (RUNNER, lambda text: "# A word.\n" + text + "\n# Another.\n"),
    "comment in a body": (SCHEDULER, add_to("Scheduler.schedule", "# Look at this.")),
    "documentation": (KV, add_to("init_none_hash", '"""Text."""')),
    "statement in a body": (SCHEDULER, add_to("Scheduler.add_request", "count = 1")),
    "logging in a configuration": (
        CONFIG, add_to("VllmConfig.__post_init__", 'logger.info("made")')),
    "formatting": (OUTPUT, lambda text: _formatted(text)),
    "formatting of a configuration": (CACHE, lambda text: _formatted(text)),
    "annotations": (KV, replaced("vllm_config: VllmConfig", 'vllm_config: "VllmConfig | None"')),
    "decorator": (KV, replaced("def init_none_hash(", "@cache\ndef init_none_hash(")),
    "local variable renamed": (
        SCHEDULER, add_to("Scheduler.finish_requests", "ids = request_ids")),
    "unrelated function gone": (KV, drop("estimate_max_model_len")),
    "unrelated field gone": (CACHE, drop("CacheConfig.sliding_window")),
    "unrelated member renamed": (
        REQUEST, rename_only("RequestStatus.FINISHED_REPETITION", "FINISHED_REPEATED")),
    "import order": (REQUEST, lambda text: text.replace("import enum\n", "import enum as enum\n")),
}  # fmt: skip


def _formatted(text: str) -> str:
    """Write a file as the interpreter would: no comment, other quotes, other lines."""
    return ast.unparse(ast.parse(text))


@pytest.mark.parametrize("name", BREAKS)
def test_break_is_told_at_its_seam_and_nowhere_else(name: str) -> None:
    told_where_it_breaks(BREAKS[name])


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_edit_is_not_told(name: str) -> None:
    not_told(*HARMLESS[name])


def test_code_that_moved_and_is_re_exported_is_not_told() -> None:
    """One function, one class with its members, one module: each found where it always was."""
    release = installed()
    whole = release.text(REQUEST)
    answer = answer_to({
        REQUEST: "from vllm.v1.requests import *\nfrom vllm.v1.requests import Request\n",
        "vllm/v1/requests.py": whole,
    })  # fmt: skip
    assert told_by(answer) == {}


def test_there_are_enough_of_both() -> None:
    assert len(BREAKS) >= 40
    assert len(HARMLESS) >= 20
