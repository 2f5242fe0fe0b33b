"""Probes of the slots: which a token's row goes to, and whose the drafter is told of."""

from __future__ import annotations

import ast

from harness.seams._arithmetic import Example, NotRead, Number, Pointer
from harness.seams._bindings import last_name
from harness.seams._classes import Class, Classes
from harness.seams._flow import Flow, Point
from harness.seams._forms import argument_in, at, bound, fits, forms, keyword
from harness.seams._in_place import unchanged
from harness.seams._reading import ABSENT, UNKNOWN, flow
from harness.seams._runner import PROPOSER, RUNNER, kept_at, proposals, put_at

_TABLE = "vllm.v1.worker.block_table"
_GROUPS = "self.kv_cache_config.kv_cache_groups"


def slots(classes: Classes) -> str:
    """Which slots the rows go to: those of the batch, of which cache group, or ``unknown``."""
    runner, took = classes.find(*RUNNER), flow(classes, PROPOSER[0], f"{PROPOSER[1]}.propose")
    if took is None or runner is None:
        return ABSENT if classes.find(*PROPOSER) is None else UNKNOWN
    mapped = flow(classes, PROPOSER[0], f"{PROPOSER[1]}._get_slot_mapping")
    calls = list(took.calls("set_forward_context"))
    if mapped is None or len(calls) != 1 or not _slots_kept(mapped):
        return UNKNOWN
    call, point = calls[0]
    if point.guards:
        return UNKNOWN
    own = "self._get_slot_mapping(ANY, ARG.slot_mapping)"
    number = argument_in(at(keyword(call, "slot_mapping"), point), own)
    for given, there in proposals(classes):
        passed = at(bound(given, took.node, number), there) if number else frozenset()
        source = argument_in(passed, "ARG")
        if source is None or not _comes_from_batch(classes, runner, source):
            return UNKNOWN
    return _group(classes)


def slot_of(classes: Classes) -> str:
    """Which slot a token's row goes to: ``place in its block``, or ``unknown``.

    The kernel that tells it is tried on an example; before 0.19.0 it is a line of numpy.
    """
    found = flow(classes, _TABLE, "BlockTable.compute_slot_mapping")
    kernel = flow(classes, _TABLE, "_compute_slot_mapping_kernel") or flow(
        classes, _TABLE, "ComputeSlotMappingKernel.kernel"
    )
    if found is None or not _filled(classes):
        return UNKNOWN
    if kernel is not None:
        right = _launched(found, kernel) and _slots_right(kernel)
        return "place in its block" if right else UNKNOWN
    index = "arg1 * self.max_num_blocks_per_req + arg2 // self.block_size"
    sums = [
        fits(at(call.args[0], point), f"self.block_table.np.ravel()[{index}] * self.block_size")
        and fits(at(call.args[1], point), "arg2 % self.block_size")
        and fits(at(keyword(call, "out"), point), "self.slot_mapping.np[:arg1.shape[0]]")
        for call, point in found.calls("add")
        if len(call.args) == 2
    ]
    return "place in its block" if sums and all(sums) else UNKNOWN


def _filled(classes: Classes) -> bool:
    """Whether each group's table gets the blocks of its own group, behind those that it has."""
    own = flow(classes, _TABLE, "BlockTable.append_row")
    new = flow(classes, _TABLE, "BlockTable.add_row")
    stores = list(own.stored("np")) if own else []
    start = "self.num_blocks_per_row[arg2]"
    ids = ("arg1", "self.map_to_kernel_blocks(np.array(arg1), ANY)")
    right = bool(stores) and all(
        fits(at(value, point), *ids)
        and fits(
            at(target, point),
            *(f"self.block_table.np[arg2, {start}:{start} + len({one})]" for one in ids),
        )
        for target, value, point in stores
    )
    each = "_each(enumerate(self.block_tables))"
    for name in ("append_row", "add_row"):
        every = flow(classes, _TABLE, f"MultiGroupBlockTable.{name}")
        calls = list(every.calls(name)) if every else []
        right = (
            right
            and bool(calls)
            and all(
                isinstance(call.func, ast.Attribute)
                and not point.guards
                and fits(at(call.func.value, point), f"{each}[1]")
                and _given(call, point, f"arg1[{each}[0]]", "arg2")
                for call, point in calls
            )
        )
    added = list(new.calls("append_row")) if new else []
    return right and bool(added) and all(_given(*one, "arg1", "arg2") for one in added)


def _given(call: ast.Call, point: Point, *wanted: str) -> bool:
    return len(call.args) == len(wanted) and all(
        fits(at(one, point), form) for one, form in zip(call.args, wanted, strict=True)
    )


_BLOCK, _WIDTH = 4, 3
_STARTS, _PLACES = [0, 3, 9], [2, 3, 4, 0, 1, 5, 6, 8, 11]
_BLOCKS = [7, 2, 9, 5, 3, 8]
"""Two requests, their tokens' places, and three blocks for each."""
_ONES = ("TOTAL_CP_WORLD_SIZE", "CP_KV_CACHE_INTERLEAVE_SIZE", "BLOCKS_PER_KV_BLOCK", "BLOCK_SIZE")
_ARRAYS = ("query_start_loc_ptr", "positions_ptr", "block_table_ptr", "slot_mapping_ptr")


_PASSED = {
    "num_tokens": "arg3.shape[0]",
    "query_start_loc_ptr": "arg2",
    "positions_ptr": "arg3",
    "block_table_ptr": "self.block_table.gpu",
    "block_table_stride": "self.block_table.gpu.stride(0)",
    "slot_mapping_ptr": "self.slot_mapping.gpu",
    "block_size": "self.block_size",
}
"""What the kernel's arguments are, where they are passed by place."""


def _launched(found: Flow, kernel: Flow) -> bool:
    """Whether the kernel is started with the batch's own arrays."""
    names = [one.arg for one in kernel.node.args.args]
    starts = [
        (call, point)
        for point in found.points
        if isinstance(point.node, ast.Expr)
        and isinstance(call := point.node.value, ast.Call)
        and "kernel" in last_name(call.func).lower()
    ]
    if len(starts) != 1:
        return False
    call, point = starts[0]
    # A launcher takes the number of requests first.
    given = call.args if isinstance(call.func, ast.Subscript) else call.args[1:]
    passed = dict(zip(names, given, strict=False))
    return all(
        name not in names or (name in passed and fits(at(passed[name], point), form))
        for name, form in _PASSED.items()
    )


def _slots_right(kernel: Flow) -> bool:
    names = [one.arg for one in [*kernel.node.args.args, *kernel.node.args.kwonlyargs]]
    known: dict[str, Number] = dict.fromkeys(_ONES, 1) | {one: Pointer(one) for one in _ARRAYS}
    known |= {"block_size": _BLOCK, "KV_CACHE_BLOCK_SIZE": _BLOCK, "block_table_stride": _WIDTH}
    known |= {"TOTAL_CP_RANK": 0, "PAD_ID": -1, "num_tokens": len(_PLACES)}
    known |= {"max_num_tokens": len(_PLACES)}
    inputs = {f"arg{n}": known[name] for n, name in enumerate(names, start=1) if name in known}
    arrays = dict(zip(_ARRAYS, (_STARTS, _PLACES, _BLOCKS, []), strict=True))
    requests = len(_STARTS) - 1
    try:
        return all(
            _stored(kernel, Example(inputs, arrays, one, requests + 1, token - _STARTS[one]))
            == {token: _BLOCKS[one * _WIDTH + place // _BLOCK] * _BLOCK + place % _BLOCK}
            for one in range(requests)
            for token, place in list(enumerate(_PLACES))[_STARTS[one] : _STARTS[one + 1]]
        )
    except NotRead:
        return False


def _stored(kernel: Flow, example: Example) -> dict[int, int]:
    """Return what a kernel stores for one token: its place -> its slot."""
    found: dict[int, int] = {}
    for call, point in kernel.calls("store"):
        if example.reached(point):
            place = example.value(call.args[0], point.env)
            if not isinstance(place, Pointer) or place.array != "slot_mapping_ptr":
                raise NotRead
            found[place.place] = example.number(call.args[1], point.env)
    return found


def _comes_from_batch(classes: Classes, runner: Class, number: int) -> bool:
    """Whether that argument of ``propose_draft_token_ids`` is the batch's own metadata."""
    place = kept_at(classes, runner, number)
    if place is None:
        return False
    built = [text for text in put_at(classes, runner, place) if text != "None"]
    ran = flow(classes, runner.module, f"{runner.name}.execute_model")
    given = [
        at(keyword(call, "slot_mappings"), point)
        for call, point in (ran.calls("_build_attention_metadata") if ran else ())
    ]
    own = bool(given) and all(fits(one, "self._get_slot_mappings(ANY)[0]") for one in given)
    return own and fits(built, "self._build_attention_metadata(ANY)[1]") and _by_group(classes)


def _by_group(classes: Classes) -> bool:
    """Whether each group's slots are those of its own block table, padding apart."""
    found = flow(classes, RUNNER[0], f"{RUNNER[1]}._get_slot_mappings")
    if found is None:
        return False
    own = frozenset(t for v, p in found.returned(inner=True) for t in at(v, p))
    table = "self.ANY.block_table[_arg1].slot_mapping.gpu[:arg1]"
    none = "torch.zeros((arg1,), dtype=torch.int64)"
    padded = "_then({0}, _done({1}[arg3:arg1].fill_, -1))"
    by_group = f"{{g: _get_slot_mapping(g) for g, _ in enumerate({_GROUPS})}}"
    given = [
        at(value.elts[0], point)
        for value, point in found.returned()
        if isinstance(value, ast.Tuple)
    ]
    right = bool(given) and all(fits(one, "None", by_group) for one in given)
    either = [padded.format(one, other) for one in (none, table) for other in (none, table)]
    return right and fits(own, *either, needs=padded.format(table, table))


def _slots_kept(mapped: Flow) -> bool:
    """Whether the buffer holds the slots that it was given, then padding, and is read so far."""
    own = "self._slot_mapping_buffer"
    stores = [
        (at(target, point), at(value, point))
        for target, value, point in mapped.stored("_slot_mapping_buffer")
    ]
    held = all(
        fits(target, f"{own}[:arg2.shape[0]]") and fits(value, "arg2") for target, value in stores
    )
    pads = [
        at(call.func.value, point)
        for call, point in mapped.calls("fill_")
        if isinstance(call.func, ast.Attribute)
    ]
    padded = all(fits(one, f"{own}[arg2.shape[0]:arg1]") for one in pads)
    given = [at(value, point) for value, point in mapped.returned()]
    if not unchanged(mapped, own, "arg2", may=["fill_"]):
        return False
    names = f"{{each0: {own}[:arg1] for each0 in self.attn_layer_names}}"
    return bool(stores) and held and padded and bool(given) and all(fits(g, names) for g in given)


def _group(classes: Classes) -> str:
    """Say whose cache group's slots the batch's metadata carries to the drafter."""
    built = flow(classes, RUNNER[0], f"{RUNNER[1]}._build_attention_metadata")
    number = "_each(enumerate(self.kv_cache_config.kv_cache_groups))[0]"
    stores = [
        (value, point)
        for target, value, point in (built.stored("slot_mapping") if built else ())
        if isinstance(target, ast.Attribute) and last_name(target.value) != "self"
    ]
    own = [at(value, point) for value, point in stores]
    # Of the first group it is what the common metadata is made with.
    others = (f"{number} > 0", f"len({_GROUPS}) == 0")
    asked = [forms(guard.test, guard.env) for _, point in stores for guard in point.guards]
    cuts = list(built.calls("unpadded")) if built else []
    if not all(fits(one, *others) for one in asked) or not all(
        _given(call, point, "arg1", "arg2") for call, point in cuts
    ):
        return UNKNOWN
    if built is None or not own or not all(fits(one, f"ANY[{number}]") for one in own):
        return UNKNOWN
    guards = {
        id(guard): guard
        for point in built.points
        for guard in point.guards
        if isinstance(point.node, ast.Assign)
    }
    chosen = [one for one in guards.values() if "kv_cache_gid ==" in ast.unparse(one.test)]
    found = {text for one in chosen for text in forms(one.test, one.env)}
    if not fits(found, f"self.drafter.kv_cache_gid == {number}"):
        return UNKNOWN
    if not _finds_group(classes):
        return UNKNOWN
    listed = any(
        isinstance(test, ast.Call) and PROPOSER[1] in ast.unparse(test)
        for test in {guard.test for point in built.points for guard in point.guards if guard.holds}
    )
    return f"the batch's, {'drafter' if listed else 'first'} group"


def _finds_group(classes: Classes) -> bool:
    """Whether the drafter's group, where it looks for one, is the group that has its layer."""
    found = flow(classes, PROPOSER[0], f"{PROPOSER[1]}.validate_same_kv_cache_group")
    stores = list(found.stored("kv_cache_gid")) if found else []
    each = "_each(enumerate(arg1.kv_cache_groups))"
    return found is not None and all(
        fits(at(value, point), f"{each}[0]")
        and len(point.guards) == 1
        and point.guards[0].holds
        and fits(
            forms(point.guards[0].test, point.guards[0].env),
            f"self.attn_layer_names[0] in {each}[1].layer_names",
        )
        for _, value, point in stores
    )


PROBES = {
    "native.rows.slots": slots,
    "native.slots": slot_of,
}
