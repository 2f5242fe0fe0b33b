"""Edits of a release from its model to its cache that break; harmless ones up to the connector.

No name moves in them and no call fails: only what a value is made of changes.
"""

from __future__ import annotations

import ast
import re

from tests.unit.mutated import Break
from tests.unit.surgery import Edit, add_argument, add_to, replaced

RUNNER = "vllm/v1/worker/gpu_model_runner.py"
PROPOSER = "vllm/v1/spec_decode/extract_hidden_states.py"
MODEL = "vllm/model_executor/models/extract_hidden_states.py"
CONFIG = "vllm/transformers_utils/configs/extract_hidden_states.py"
SPECULATIVE = "vllm/config/speculative.py"
CONNECTOR = "vllm/distributed/kv_transfer/kv_connector/v1/example_hidden_states_connector.py"
SCHEDULER = "vllm/v1/core/sched/scheduler.py"
MANAGER = "vllm/v1/core/kv_cache_manager.py"
TABLE = "vllm/v1/worker/block_table.py"
DEEPSEEK = "vllm/model_executor/models/deepseek_v2.py"
INTERFACES = "vllm/model_executor/models/interfaces.py"

CUT = "target_hidden_states = [h[:num_scheduled_tokens] for h in aux_hidden_states]"
STACK = "torch.stack(target_hidden_states, dim=1)"
GATHER = "kv_cache[slot_mapping // block_size, :, slot_mapping % block_size][\n        :num_tokens"
HANDED = "        assert self.attn_metadata_builder is not None\n        attn_metadata ="
TAKEN = "                aux_hidden_states.append(aux_hidden_state)\n"
NORMED = "        hidden_states, _ = self.norm(hidden_states, residual)\n        if len(aux_"
WRITTEN = "        basic_cache(to_cache, kv_cache, slot_mapping)\n"
SCATTER = "kv_cache[slot_mapping // block_size, :, slot_mapping % block_size] = to_cache"
PROMPT = "token_ids = torch.tensor(request.prompt_token_ids)"
OFFSETS = "block_offsets.reshape((1, self._block_size))"


CLEARED = "        # Clear ephemeral state.\n        self.execute_model_state = None\n"
KEEPS = "        self.execute_model_state = ExecuteModelState(\n            scheduler_output,\n"
STATE = """            logits,
            spec_decode_metadata,
            spec_decode_common_attn_metadata,
            hidden_states,
            sample_hidden_states,
            aux_hidden_states,
            ec_connector_output,
            cudagraph_stats,
            slot_mappings,
        )
"""
CALLED = "        self._settle()\n"
METHOD = "    def _input_fits_in_drafter(\n"


def with_method(body: str, old: str, new: str) -> Edit:
    """Give the runner a method without arguments, and change the code that calls it."""
    made = replaced(METHOD, f"    def _settle(self):\n        {body}\n\n{METHOD}")
    changed = replaced(old, new)
    return lambda text: changed(made(text))


UNPACKED = re.compile(r"        \(\n((?: {12}\w+,\n)+)        \) = self\.execute_model_state\n")


def by_keywords(lines: str) -> str:
    return re.sub(r"(\w+),", r"\1=\1,", lines)


def by_attributes(found: re.Match[str]) -> str:
    read = re.sub(r" {12}(\w+),", r"        \1 = state.\1", found[1])
    return f"        state = self.execute_model_state\n{read}"


def native(path: str, edit: Edit, probes: str, *, seams: str = "") -> Break:
    """An edit that leaves only the native generation in doubt."""
    return Break(path, edit, seams, probes, hurts="native")


BREAKS: dict[str, Break] = {
    # Which depths.
    "ids counted from one": native(
        RUNNER, replaced("            return tuple(layer_ids)\n",
                         "            return tuple(i + 1 for i in layer_ids)\n"),
        "native.layer-ids"),
    "ids filtered": native(
        RUNNER, replaced("            return tuple(layer_ids)\n",
                         "            return tuple(i for i in layer_ids if i)\n"),
        "native.layer-ids"),
    "ids sorted downwards": native(
        RUNNER, replaced("            return tuple(layer_ids)\n",
                         "            layer_ids.sort(reverse=True)\n"
                         "            return tuple(layer_ids)\n"),
        "native.layer-ids"),
    "last id dropped where there are many": native(
        RUNNER, replaced("            return tuple(layer_ids)\n",
                         "            if len(layer_ids) > 3:\n"
                         "                layer_ids = layer_ids[:-1]\n"
                         "            return tuple(layer_ids)\n"),
        "native.layer-ids"),
    "ids read under another key": native(
        RUNNER, replaced('getattr(hf_config, "eagle_aux_hidden_state_layer_ids", None)',
                         'getattr(hf_config, "target_layer_ids", None)'),
        "native.layer-ids"),
    "ids reordered on their way to the model": native(
        RUNNER, replaced("self.model.set_aux_hidden_state_layers(aux_layers)",
                         "self.model.set_aux_hidden_state_layers(aux_layers[::-1])"),
        "native.layer-ids"),
    "model's own ids win over the configured ones": native(
        RUNNER, replaced("        if aux_layers:\n            logger.info(\n",
                         "        if not aux_layers:\n            logger.info(\n"),
        "native.layer-ids"),
    "configuration drops what it was given": native(
        CONFIG, replaced("{**model_dict, **kwargs}", "{**kwargs, **model_dict}"),
        "native.layer-ids"),
    "configuration changes an id": native(
        CONFIG, replaced("        super().__init__(**combined)",
                         '        combined["eagle_aux_hidden_state_layer_ids"] = [2, 30, 58]\n'
                         "        super().__init__(**combined)"),
        "native.layer-ids"),
    "configuration made of the target's alone": native(
        SPECULATIVE, replaced("self.draft_model_config.hf_config, **hf_config",
                              "self.draft_model_config.hf_config, **{}"),
        "native.layer-ids"),
    "shared capture shifts the ids": native(
        INTERFACES, replaced("tuple(sorted(set(layers)))",
                             "tuple(sorted(i + 1 for i in set(layers)))"),
        "eagle3.mixin.layer-ids"),
    "shared setter drops an id": native(
        INTERFACES, replaced("holder._set_aux_hidden_state_layers(layers)",
                             "holder._set_aux_hidden_state_layers(layers[1:])"),
        "eagle3.mixin.layer-ids"),
    "shared capture forgets the residual": native(
        INTERFACES, replaced("value = hidden_states + residual if residual is not None else "
                             "hidden_states", "value = hidden_states"),
        "eagle3.mixin.state"),
    "shared capture takes the next layer": native(
        INTERFACES, replaced("if layer_idx in self.aux_hidden_state_layers:",
                             "if layer_idx + 1 in self.aux_hidden_state_layers:"),
        "eagle3.mixin.state"),
    "model is never told its layers": native(
        RUNNER, replaced("                self._setup_eagle3_aux_hidden_state_outputs()\n",
                         "                pass\n"),
        "native.layer-ids"),
    "model is not asked for its states": native(
        RUNNER, replaced("                    vllm_config=self.vllm_config, device=self.device\n"
                         "                )\n"
                         "                self.use_aux_hidden_state_outputs = True",
                         "                    vllm_config=self.vllm_config, device=self.device\n"
                         "                )\n"
                         "                self.use_aux_hidden_state_outputs = False"),
        "native.layer-ids"),
    # In which type.
    "buffer of another type": native(
        PROPOSER, replaced("            dtype=self.dtype,", "            dtype=torch.float16,"),
        "native.rows.axes"),
    "drafter's type is not the model's": native(
        PROPOSER, replaced("self.dtype = vllm_config.model_config.dtype",
                           "self.dtype = torch.float16"),
        "native.rows.axes"),
    "cache as quantised as the model's": native(
        MODEL, replaced('cache_config = replace(cache_config, cache_dtype="auto")', "pass"),
        "native.cache.spec"),
    "cache of another type": native(
        MODEL, replaced("dtype=self.kv_cache_torch_dtype,", "dtype=torch.float16,"),
        "native.cache.spec"),
    # By which name.
    "another name in the runner": native(
        RUNNER, replaced('.method == "extract_hidden_states"', '.method == "hidden_states"'),
        "native.method native.layer-ids"),
    "another name in the configuration": native(
        SPECULATIVE, replaced('elif self.method == "extract_hidden_states"',
                              'elif self.method == "hidden_states"'),
        "native.method native.layer-ids"),
    "another name everywhere": native(
        SPECULATIVE, replaced('"extract_hidden_states"', '"hidden_states"'),
        "native.method native.layer-ids native.rows.*", seams=""),
    "drafter runs for another method": native(
        RUNNER, replaced("elif spec_config.uses_extract_hidden_states():",
                         'elif spec_config.method == "suffixes":'),
        "native.method native.rows.*"),
    # Which rows.
    "rows shifted by one": native(
        RUNNER, replaced(CUT, CUT.replace("h[:num", "h[1:num")), "native.rows.cut"),
    "last row left out": native(
        RUNNER, replaced(CUT, CUT.replace("tokens]", "tokens - 1]")), "native.rows.cut"),
    "rows backwards": native(
        RUNNER, replaced(CUT, CUT.replace("tokens]", "tokens].flip(0)")), "native.rows.cut"),
    "depths backwards in the runner": native(
        RUNNER, replaced(CUT, CUT.replace("in aux_hidden_states", "in aux_hidden_states[::-1]")),
        "native.rows.cut"),
    "first depth missing": native(
        RUNNER, replaced(CUT, CUT + "[1:]"), "native.rows.cut"),
    "rows of last hidden states": native(
        RUNNER, replaced(CUT, "target_hidden_states = [hidden_states[:num_scheduled_tokens]]"),
        "native.rows.cut"),
    "list emptied before it is handed on": native(
        RUNNER, replaced("            " + CUT, "            aux_hidden_states.reverse()\n"
                                               "            " + CUT),
        "native.rows.cut"),
    "state unpacked in another order": native(
        RUNNER, replaced("            sample_hidden_states,\n            aux_hidden_states,\n"
                         "            ec_connector_output,\n            cudagraph_stats,\n"
                         "            slot_mappings,\n        ) = self.execute_model_state",
                         "            aux_hidden_states,\n            sample_hidden_states,\n"
                         "            ec_connector_output,\n            cudagraph_stats,\n"
                         "            slot_mappings,\n        ) = self.execute_model_state"),
        "native.rows.cut"),
    "other half of the model's output": native(
        RUNNER, replaced("                hidden_states, aux_hidden_states = model_output",
                         "                aux_hidden_states, hidden_states = model_output"),
        "native.rows.cut"),
    "depths stacked before tokens": native(
        PROPOSER, replaced(STACK, STACK.replace("dim=1", "dim=0")), "native.rows.*"),
    "depths stacked backwards": native(
        PROPOSER, replaced(STACK, STACK.replace("states,", "states[::-1],")), "native.rows.*"),
    "buffer filled from its second row": native(
        PROPOSER, replaced("self.hidden_states[:num_tokens] = stacked",
                           "self.hidden_states[1 : num_tokens + 1] = stacked"),
        "native.rows.*"),
    "buffer read from its second row": native(
        PROPOSER, replaced("hidden_states=self.hidden_states[:num_input_tokens]",
                           "hidden_states=self.hidden_states[1 : num_input_tokens + 1]"),
        "native.rows.axes"),
    "chunk of one token is passed over": native(
        PROPOSER, replaced("        # Copy hidden states to buffer\n",
                           "        if num_tokens == 1:\n"
                           "            return sampled_token_ids[:, :1]\n"),
        "native.rows.*"),
    "step of one token is passed over": native(
        RUNNER, replaced("            if use_gpu_toks:\n",
                         "            if use_gpu_toks and scheduler_output"
                         ".total_num_scheduled_tokens > 1:\n"),
        "native.rows.when"),
    "longest prompts are passed over": native(
        RUNNER, replaced("            <= self.effective_drafter_max_model_len",
                         "            <= self.effective_drafter_max_model_len // 2"),
        "native.rows.when"),
    # Changed where they lie.
    "buffer emptied": native(
        PROPOSER, replaced(HANDED, "        self.hidden_states.zero_()\n" + HANDED),
        "native.rows.*"),
    "buffer changed through a view of it": native(
        PROPOSER, replaced(HANDED, "        view = self.hidden_states[:num_tokens]\n"
                                   "        view.mul_(2)\n" + HANDED),
        "native.rows.*"),
    "buffer stored into through a view of it": native(
        PROPOSER, replaced(HANDED, "        view = self.hidden_states[:num_tokens]\n"
                                   "        view[0] = 0\n" + HANDED),
        "native.rows.*"),
    "buffer added to": native(
        PROPOSER, replaced(HANDED, "        self.hidden_states += 1\n" + HANDED),
        "native.rows.*"),
    "buffer written as a result": native(
        PROPOSER, replaced(HANDED, "        torch.mul(stacked_hidden_states, 2, "
                                   "out=self.hidden_states[:num_tokens])\n" + HANDED),
        "native.rows.*"),
    "a row of the buffer emptied": native(
        PROPOSER, replaced(HANDED, "        self.hidden_states.index_fill_(\n"
                                   "            0, torch.tensor([0]), 0)\n" + HANDED),
        "native.rows.*"),
    "buffer changed by a method": native(
        PROPOSER, replaced(HANDED, "        self._shuffle()\n" + HANDED), "native.rows.*"),
    "buffer handed to a function": native(
        PROPOSER, replaced(HANDED, "        shuffle(self.hidden_states)\n" + HANDED),
        "native.rows.*"),
    "buffer handed to a function for a result": native(
        PROPOSER, replaced(HANDED, "        _ = shuffle(self.hidden_states)\n" + HANDED),
        "native.rows.*"),
    "buffer's method called by a name": native(
        PROPOSER, replaced(HANDED, "        empty = self.hidden_states.zero_\n"
                                   "        empty()\n" + HANDED),
        "native.rows.*"),
    "list handed to a function for a result": native(
        RUNNER, replaced("            " + CUT, "            _ = shuffle(aux_hidden_states)\n"
                                               "            " + CUT),
        "native.rows.cut"),
    "each depth changed where the model ran": native(
        RUNNER, replaced("                hidden_states, aux_hidden_states = model_output\n",
                         "                hidden_states, aux_hidden_states = model_output\n"
                         "                for h in aux_hidden_states:\n"
                         "                    h.mul_(2)\n"),
        "native.rows.cut"),
    # From beside the way.
    "kept state changed by a method of the runner": native(
        RUNNER, with_method("for h in self.execute_model_state.aux_hidden_states:\n"
                            "            h.mul_(2)", KEEPS + STATE, KEEPS + STATE + CALLED),
        "native.rows.cut"),
    "kept state read by attributes, another one": native(
        RUNNER, lambda text: UNPACKED.sub(by_attributes, text).replace(
            "= state.aux_hidden_states", "= state.hidden_states"),
        "native.rows.cut"),
    "another state kept by keywords": native(
        RUNNER, replaced(KEEPS + STATE, KEEPS + by_keywords(STATE).replace(
            "=aux_hidden_states", "=[hidden_states]")),
        "native.rows.cut"),
    "kept state replaced by a method of the runner": native(
        RUNNER, with_method("self.execute_model_state = self.last_state",
                            KEEPS + STATE, KEEPS + STATE + CALLED),
        "native.rows.cut"),
    "states kept by the runner and changed there": native(
        RUNNER, with_method("self.last_rows.reverse()", KEEPS,
                            "        self.last_rows = aux_hidden_states\n" + CALLED + KEEPS),
        "native.rows.cut"),
    "states kept by the runner once they are sampled": native(
        RUNNER, with_method("self.last_rows.reverse()", CLEARED,
                            CLEARED + "        self.last_rows = aux_hidden_states\n" + CALLED),
        "native.rows.cut"),
    "states put into a list of the runner": native(
        RUNNER, with_method("self.rows[-1].reverse()", KEEPS,
                            "        self.rows.append(aux_hidden_states)\n" + CALLED + KEEPS),
        "native.rows.cut"),
    "model run again before its rows are taken": native(
        RUNNER, replaced(CLEARED, CLEARED + "        self._dummy_run(1)\n"), "native.rows.cut"),
    "states handed to a function of execute_model for a result": native(
        RUNNER, replaced(KEEPS, "        count = shuffle(aux_hidden_states)\n" + KEEPS),
        "native.rows.cut"),
    "each depth handed to a function in a comprehension": native(
        RUNNER, replaced(KEEPS, "        if aux_hidden_states is not None:\n"
                                "            done = [shift(h) for h in aux_hidden_states]\n"
                         + KEEPS),
        "native.rows.cut"),
    "each depth changed in a comprehension": native(
        RUNNER, replaced("            " + CUT, "            [h.mul_(2) for h in aux_hidden_states]"
                                               "\n            " + CUT),
        "native.rows.cut"),
    "states changed by a function inside that is made before them": native(
        RUNNER, replaced("            model_output = self._model_forward(",
                         "            def turn():\n"
                         "                aux_hidden_states.reverse()\n\n"
                         "            model_output = self._model_forward("),
        "native.rows.cut"),
    "each depth changed in a loop": native(
        PROPOSER, replaced("        stacked_hidden_states = " + STACK,
                           "        for one in target_hidden_states:\n"
                           "            one.mul_(2)\n"
                           "        stacked_hidden_states = " + STACK),
        "native.rows.*"),
    "each depth changed in the runner": native(
        RUNNER, replaced("            " + CUT, "            for h in aux_hidden_states:\n"
                                               "                h.mul_(2)\n"
                                               "            " + CUT),
        "native.rows.cut"),
    "list reversed by another name": native(
        RUNNER, replaced("            " + CUT, "            aux = aux_hidden_states\n"
                                               "            aux.reverse()\n"
                                               "            " + CUT),
        "native.rows.cut"),
    "state changed in the model once it is taken": native(
        DEEPSEEK, replaced(TAKEN, TAKEN + "                aux_hidden_state.mul_(0)\n"),
        "deepseek.capture"),
    "depths reversed in the model": native(
        DEEPSEEK, replaced(NORMED, "        aux_hidden_states.reverse()\n" + NORMED),
        "deepseek.capture"),
    "each depth changed in the model": native(
        DEEPSEEK, replaced(NORMED, "        for a in aux_hidden_states:\n"
                                   "            a.mul_(2)\n" + NORMED),
        "deepseek.capture"),
    "depths handed to a method of the model": native(
        DEEPSEEK, replaced(NORMED, "        self._shuffle(aux_hidden_states)\n" + NORMED),
        "deepseek.capture"),
    "depth changed in the shared capture": native(
        INTERFACES, replaced("aux_hidden_states.append(value)",
                             "aux_hidden_states.append(value)\n"
                             "            aux_hidden_states[0].mul_(2)"),
        "eagle3.mixin.state"),
    "cache emptied once it is written": native(
        MODEL, replaced(WRITTEN, WRITTEN + "        kv_cache.zero_()\n"), "native.cache.*"),
    "cache emptied by the writer": native(
        MODEL, replaced(SCATTER, SCATTER + "\n    kv_cache.zero_()"), "native.cache.*"),
    "cache emptied behind the layer": native(
        MODEL, replaced("    return torch.empty(0, device=kv_cache.device",
                        "    kv_cache.zero_()\n"
                        "    return torch.empty(0, device=kv_cache.device"),
        "native.cache.*"),
    "rows written twice": native(
        MODEL, replaced(WRITTEN, WRITTEN + WRITTEN), "native.cache.*"),
    "a row written over on a condition": native(
        MODEL, replaced(SCATTER, SCATTER + "\n    if block_size > 16:\n"
                                           "        kv_cache[0] = 0"),
        "native.cache.*"),
}  # fmt: skip


def formatted(text: str) -> str:
    """Write a file as the interpreter would: no comment, other quotes, other lines."""
    return ast.unparse(ast.parse(text))


HARMLESS: dict[str, tuple[str, Edit]] = {
    "local names of the cut": (
        RUNNER, replaced(CUT, "rows = [one[:num_scheduled_tokens] for one in aux_hidden_states]\n"
                              "            target_hidden_states = rows")),
    "count of the cut written out": (
        RUNNER, replaced(CUT, CUT.replace("num_scheduled_tokens",
                                          "scheduler_output.total_num_scheduled_tokens"))),
    "cut from row nought": (RUNNER, replaced(CUT, CUT.replace("h[:num", "h[0:num"))),
    "ids as a list": (
        RUNNER, replaced("            return tuple(layer_ids)\n",
                         "            found = list(layer_ids)\n"
                         "            return tuple(found)\n")),
    "ids read as an attribute": (
        RUNNER, replaced('getattr(hf_config, "eagle_aux_hidden_state_layer_ids", None)',
                         "hf_config.eagle_aux_hidden_state_layer_ids")),
    "another drafter's configuration is read too": (
        RUNNER, replaced('getattr(hf_config, "dflash_config", None)',
                         'getattr(hf_config, "dflash_config", {})')),
    "stack by keywords": (
        PROPOSER, replaced(STACK, STACK.replace("(target", "(tensors=target"))),
    "buffer told to the log": (
        PROPOSER, replaced(HANDED, '        logger.debug("%s", self.hidden_states.shape)\n'
                                   "        assert self.hidden_states.shape[0] >= num_tokens\n"
                           + HANDED)),
    "depths counted otherwise": (
        DEEPSEEK, replaced("if len(aux_hidden_states) > 0:", "if aux_hidden_states:")),
    "depths counted in the runner": (
        RUNNER, replaced("            " + CUT, "            count = len(aux_hidden_states)\n"
                                               "            count += 1\n"
                                               "            " + CUT)),
    "state kept by keywords": (RUNNER, replaced(KEEPS + STATE, KEEPS + by_keywords(STATE))),
    "kept state read by attributes": (RUNNER, lambda text: UNPACKED.sub(by_attributes, text)),
    "method of the runner in the middle": (
        RUNNER, with_method("self.steps = getattr(self, 'steps', 0) + 1", CLEARED,
                            CLEARED + CALLED)),
    "method of the runner behind the model": (
        RUNNER, with_method("self.steps = getattr(self, 'steps', 0) + 1", KEEPS, CALLED + KEEPS)),
    "method that asks whether a step is open": (
        RUNNER, with_method("return self.execute_model_state is None", CLEARED, CALLED + CLEARED)),
    "states counted in execute_model": (
        RUNNER, replaced(KEEPS, "        count = len(aux_hidden_states or [])\n"
                                "        logger.debug('%s', aux_hidden_states and count)\n"
                         + KEEPS)),
    "function inside that has nothing of them": (
        RUNNER, replaced(KEEPS, "        def rows():\n            return num_scheduled_tokens\n\n"
                         + KEEPS)),
    "shapes in a comprehension": (
        RUNNER, replaced(KEEPS, "        shapes = [h.shape for h in aux_hidden_states or []]\n"
                         + KEEPS)),
    "proposal by place": (
        PROPOSER, replaced(STACK, "torch.stack(target_hidden_states, 1)")),
    "stacked rows called otherwise": (
        PROPOSER, lambda text: re.sub(r"\bstacked_hidden_states\b", "together", text)),
    "buffer filled by a copy": (
        PROPOSER, replaced("self.hidden_states[:num_tokens] = stacked_hidden_states",
                           "self.hidden_states[:num_tokens].copy_(stacked_hidden_states)")),
    "proposal with one more keyword": (
        PROPOSER, add_argument("ExtractHiddenStatesProposer.propose", "trace", "None")),
    "context with one more keyword": (
        PROPOSER, replaced("            num_tokens=num_input_tokens,\n",
                           "            num_tokens=num_input_tokens,\n            trace=None,\n")),
    "count in the middle": (PROPOSER, add_to("ExtractHiddenStatesProposer.propose", "count = 1")),
    "formatting of the drafter": (PROPOSER, formatted),
    "formatting of the draft layer": (MODEL, formatted),
    "formatting of the connector": (CONNECTOR, formatted),
    "arguments of the writer called otherwise": (
        MODEL, replaced(SCATTER, "size, rows = block_size, to_cache\n    "
                        + SCATTER.replace("block_size", "size").replace("to_cache", "rows"))),
    "writer called otherwise": (
        MODEL, lambda text: re.sub(r"\bbasic_cache\b", "store_rows", text)),
    "reading in two steps": (
        CONNECTOR, replaced(f"return {GATHER}\n    ]",
                            "block, place = slot_mapping // block_size, slot_mapping % block_size\n"
                            "    found = kv_cache[block, :, place]\n"
                            "    return found[:num_tokens]")),
    "group looked for in a loop variable": (
        CONNECTOR, lambda text: re.sub(r"\bgroup_ids\b", "numbers", text)),
    "token ids through a name": (
        CONNECTOR, replaced(PROMPT, "prompt = request.prompt_token_ids\n"
                                    "            token_ids = torch.tensor(prompt)")),
    "block ids through a name": (
        SCHEDULER, replaced("block_ids = self.kv_cache_manager.get_block_ids_for_computed_tokens(",
                            "block_ids = ids = self.kv_cache_manager"
                            ".get_block_ids_for_computed_tokens(")),
    "kernel counts its blocks otherwise": (
        TABLE, replaced("pos - virtual_block_indices * virtual_block_size",
                        "pos % virtual_block_size")),
    "debugging of the configuration": (
        SPECULATIVE, add_to("SpeculativeConfig.uses_extract_hidden_states", "asked = True")),
}  # fmt: skip
