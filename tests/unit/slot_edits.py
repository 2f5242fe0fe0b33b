"""Edits of a release from its cache to its connector: slots, blocks, what is read and saved."""

from __future__ import annotations

from tests.unit.mutated import Break
from tests.unit.row_edits import (
    CONNECTOR,
    GATHER,
    MANAGER,
    MODEL,
    OFFSETS,
    PROMPT,
    PROPOSER,
    RUNNER,
    SCATTER,
    SCHEDULER,
    TABLE,
    native,
)
from tests.unit.surgery import replaced, returns

BREAKS: dict[str, Break] = {
    # Into which slots.
    "slots emptied once they are stored": native(
        PROPOSER, replaced("        view = self._slot_mapping_buffer",
                           "        self._slot_mapping_buffer.zero_()\n"
                           "        view = self._slot_mapping_buffer"),
        "native.rows.slots"),
    "slots of the first group's table": native(
        RUNNER, replaced("blk_table = self.input_batch.block_table[kv_cache_gid]\n"
                         "                slot_mapping = blk",
                         "blk_table = self.input_batch.block_table[0]\n"
                         "                slot_mapping = blk"),
        "native.rows.slots"),
    "slots of the batch from the second on": native(
        RUNNER, replaced("blk_table.slot_mapping.gpu[:num_tokens_padded]",
                         "blk_table.slot_mapping.gpu[1 : num_tokens_padded + 1]"),
        "native.rows.slots"),
    "drafter takes another group for its own": native(
        PROPOSER, replaced("self.kv_cache_gid = gid", "self.kv_cache_gid = gid - 1"),
        "native.rows.slots"),
    "blocks backwards in the table": native(
        TABLE, replaced("start : start + num_blocks] = block_ids",
                        "start : start + num_blocks] = block_ids[::-1]"),
        "native.slots"),
    "every table gets the first group's blocks": native(
        TABLE, replaced("append_row(block_ids[i], row_idx)", "append_row(block_ids[0], row_idx)"),
        "native.slots"),
    "second group keeps the first one's slots": native(
        RUNNER, replaced("            if kv_cache_gid > 0:\n                cm.block_table",
                         "            if kv_cache_gid > 1:\n                cm.block_table"),
        "native.rows.slots"),
    "positions shifted before the kernel": native(
        TABLE, replaced("            query_start_loc,\n            positions,\n"
                        "            self.block_table.gpu,",
                        "            query_start_loc,\n            positions + 1,\n"
                        "            self.block_table.gpu,"),
        "native.slots"),
    "slots shifted": native(
        PROPOSER, replaced(".copy_(slot_mapping)", ".copy_(slot_mapping + 1)"),
        "native.rows.slots"),
    "slots of the buffer's second half": native(
        PROPOSER, replaced("view = self._slot_mapping_buffer[:num_tokens]",
                           "view = self._slot_mapping_buffer[1 : num_tokens + 1]"),
        "native.rows.slots"),
    "slots of the first group": native(
        RUNNER,
        replaced("if self.drafter.kv_cache_gid == kv_cache_gid:", "if kv_cache_gid == 0:"),
        "native.rows.slots"),
    "rows written to the block's neighbour": native(
        MODEL, replaced(SCATTER, SCATTER.replace("slot_mapping //", "(slot_mapping + 1) //")),
        "native.cache.*"),
    "heads and tokens exchanged where it writes": native(
        MODEL, replaced(SCATTER, "kv_cache[slot_mapping // block_size, slot_mapping % block_size]"
                                 " = to_cache"),
        "native.cache.*"),
    "rows reversed where it writes": native(
        MODEL, replaced(SCATTER, SCATTER + ".flip(0)"), "native.cache.*"),
    "block size of another axis": native(
        MODEL, replaced("block_size = kv_cache.shape[2]", "block_size = kv_cache.shape[1]"),
        "native.cache.*"),
    "layer is told of half its depths": native(
        MODEL, replaced("num_heads=self.num_hidden_states,",
                        "num_heads=self.num_hidden_states // 2,"),
        "native.cache.spec"),
    "cache of an ordinary class": native(
        MODEL, replaced("return HiddenStateCacheSpec(", "return AttentionSpec("),
        "native.cache.spec"),
    "kernel counts blocks from one": native(
        TABLE, replaced("pos // virtual_block_size", "pos // virtual_block_size + 1"),
        "native.slots"),
    "kernel forgets the place in the block": native(
        TABLE, replaced("block_numbers * KV_CACHE_BLOCK_SIZE + local_block_offsets",
                        "block_numbers * KV_CACHE_BLOCK_SIZE"),
        "native.slots"),
    # Whose blocks.
    "blocks of another order": native(
        MANAGER, replaced("tuple([blk.block_id for blk in group] for group in groups)",
                          "tuple([blk.block_id for blk in group[::-1]] for group in groups)"),
        "native.blocks"),
    "one block less": native(
        MANAGER, replaced("ids[:num_valid_blocks]", "ids[: num_valid_blocks - 1]"),
        "native.blocks"),
    "blocks of another request": native(
        SCHEDULER, replaced("            request_id=request.request_id,\n"
                            "            num_computed_tokens=request.num_computed_tokens,",
                            "            request_id=request.client_index,\n"
                            "            num_computed_tokens=request.num_computed_tokens,"),
        "native.blocks"),
    "blocks freed though they are to be kept": native(
        SCHEDULER, replaced("        if not delay_free_blocks:\n", "        if request:\n"),
        "native.blocks"),
    # What is read back and saved.
    "rows read from the second on": native(
        CONNECTOR, replaced(GATHER, GATHER.replace(":num_tokens", "1 : num_tokens + 1")),
        "native.cache.read"),
    "slots read by another axis": native(
        CONNECTOR, replaced("block_size = kv_cache.shape[2]", "block_size = kv_cache.shape[1]"),
        "native.cache.read"),
    "last token's row left out": native(
        CONNECTOR, replaced("num_tokens = pending.token_ids.shape[0]",
                            "num_tokens = pending.token_ids.shape[0] - 1"),
        "native.saved.rows"),
    "slots of the stock connector shifted": native(
        CONNECTOR, replaced(OFFSETS, OFFSETS + " + 1"), "native.saved.rows"),
    "states under another key": native(
        CONNECTOR, replaced('"hidden_states": pinned_hs', '"states": pinned_hs'),
        "native.saved.rows native.connector.tensors"),
    "file written before the copy is done": native(
        CONNECTOR, replaced("event.synchronize()\n            save_file(tensors, filename)",
                            "save_file(tensors, filename)\n            event.synchronize()"),
        "native.saved.written"),
    "first prompt token left out": native(
        CONNECTOR, replaced(PROMPT, PROMPT.replace("ids)", "ids[1:])")), "native.saved.tokens"),
    "output saved unasked": native(
        CONNECTOR, replaced('kv_params.get("include_output_tokens", False)',
                            'kv_params.get("include_output_tokens", True)'),
        "native.saved.tokens"),
    "output saved with its last token": native(
        CONNECTOR, replaced("list(request.all_token_ids)[:-1]", "list(request.all_token_ids)"),
        "native.saved.tokens"),
    "blocks of the first group": native(
        CONNECTOR, replaced("block_ids[self._cache_kv_group_id]", "block_ids[0]"),
        "native.saved.group"),
    "block size of the whole model": native(
        CONNECTOR, replaced("return cache_group.kv_cache_spec.block_size",
                            "return vllm_config.cache_config.block_size"),
        "native.saved.group"),
    "first cache of all": native(
        CONNECTOR, replaced("kv_caches[self.cache_layers[0]]", "next(iter(kv_caches.values()))"),
        "native.saved.cache"),
    "blocks let go before the copy": native(
        CONNECTOR, replaced("if event is not None and not event.query():", "if event is None:"),
        "native.saved.released"),
    "blocks let go when a request ends": native(
        CONNECTOR, replaced('return True, {"hidden_states_path"',
                            'return False, {"hidden_states_path"'),
        "native.saved.released"),
    "folder under another key": native(
        CONNECTOR, replaced('"shared_storage_path"', '"storage_path"'),
        "native.saved.keys native.connector.extra-keys"),
    "lock under another key": native(
        CONNECTOR, replaced('"use_synchronization_lock"', '"use_lock"'),
        "native.saved.keys native.connector.extra-keys"),
    "second rank writes": native(
        CONNECTOR, replaced("get_tensor_model_parallel_rank() == 0",
                            "get_tensor_model_parallel_rank() == 1"),
        "native.connector.rank"),
    "all ranks but the first write": native(
        CONNECTOR, replaced("get_tensor_model_parallel_rank() == 0",
                            "get_tensor_model_parallel_rank() != 0"),
        "native.connector.rank"),
    "rank is told and not asked": native(
        CONNECTOR, replaced("        if not self._is_tp_rank_zero:\n            return\n"
                            "        assert self._kv", "        assert self._kv"),
        "native.connector.rank"),
    "scheduler tells the first group alone": native(
        CONNECTOR, replaced("(KVConnectorBase_V1, SupportsHMA)", "(KVConnectorBase_V1)"),
        "native.saved.group", seams="connector"),
    "two ranks are waited for": native(
        CONNECTOR, returns("ExampleHiddenStatesConnector.get_finished_count", "2"),
        "native.connector.finished-count"),
}  # fmt: skip
