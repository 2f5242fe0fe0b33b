"""Probes of the hidden-state cache: how rows are written and read, and which blocks are whose."""

from __future__ import annotations

import ast

from harness.seams._bindings import Function, last_name
from harness.seams._classes import Classes
from harness.seams._flow import Flow, Point
from harness.seams._forms import at, bound, fits, forms, keyword
from harness.seams._in_place import unchanged
from harness.seams._reading import ABSENT, UNKNOWN, flow, is_one_of, through
from harness.seams._syntax import function

_MODEL = "vllm.model_executor.models.extract_hidden_states"
_LAYER = "CacheOnlyAttentionLayer"
_STOCK = "vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector"
_SCHEDULER = ("vllm.v1.core.sched.scheduler", "Scheduler")
_MANAGER = "vllm.v1.core.kv_cache_manager"
FLAT, BLOCKS, HEADS = (
    "flat, token, depth, hidden",
    "block, token, depth, hidden",
    "block, depth, token, hidden",
)
"""Axes of the cache as its code indexes them."""


def written(classes: Classes) -> str:
    """How the draft layer writes rows: the axes of the cache, by slot; or ``unknown``."""
    if classes.find(_MODEL, _LAYER) is None:
        return ABSENT
    target, value = _write(classes)
    slots = ("arg3", "arg3.clamp_min(0)")
    flat = "arg2.shape[0] * arg2.shape[1]"
    places = {
        FLAT: [f"arg2.view({flat}, arg2.shape[2], arg2.shape[3])[{{}}]"],
        BLOCKS: ["arg2[{0} // arg2.shape[1], {0} % arg2.shape[1]]"],
        HEADS: ["arg2[{0} // arg2.shape[2], :, {0} % arg2.shape[2]]"],
    }
    if not fits(value, "arg1") or not _reaches_cache(classes):
        return UNKNOWN
    return is_one_of(
        {
            axes: fits(target, *(form.format(slot) for form in known for slot in slots))
            for axes, known in places.items()
        }
    )


def read(classes: Classes) -> str:
    """How rows are read back: the axes of the cache, by slot, as they are written."""
    found = flow(classes, _STOCK, "extract_from_kv_cache")
    if found is None:
        stock = classes.find(_STOCK, "ExampleHiddenStatesConnector")
        return ABSENT if stock is None else UNKNOWN
    if not unchanged(found, "arg1", "arg2"):
        return UNKNOWN
    texts = frozenset(text for value, point in found.returned() for text in at(value, point))
    by_block = "arg1[arg2 // arg1.shape[{0}], {1}arg2 % arg1.shape[{0}]][:arg3]"
    axes = is_one_of(
        {
            FLAT: fits(texts, "arg1.flatten(0, 1)[arg2][:arg3]"),
            BLOCKS: fits(texts, by_block.format(1, "")),
            HEADS: fits(texts, by_block.format(2, ":, ")),
        }
    )
    return axes if axes == written(classes) else UNKNOWN


def shape(classes: Classes) -> str:
    """What the cache of the draft layer is made as: its class, and depths by hidden size."""
    spec = flow(classes, _MODEL, f"{_LAYER}.get_kv_cache_spec")
    made = flow(classes, _MODEL, f"{_LAYER}.__init__")
    model = flow(classes, _MODEL, "ExtractHiddenStatesModel.__init__")
    if spec is None or made is None or model is None:
        return ABSENT if classes.find(_MODEL, _LAYER) is None else UNKNOWN
    calls = [value for value, _ in spec.returned()]
    point = spec.points[-1]
    one = calls[0] if len(calls) == 1 else None
    if not isinstance(one, ast.Call) or not isinstance(one.func, ast.Name):
        return UNKNOWN
    kept = _passes(one, point, num_kv_heads="self.num_heads", head_size="self.head_size")
    kept = kept and _holds(made, num_heads="arg1", head_size="arg2") and _is_made(model)
    blocks = fits(
        at(keyword(one, "block_size"), point), "self.block_size", "arg1.cache_config.block_size"
    )
    kept = kept and blocks and _typed(one, point, made, model)
    return one.func.id if kept else UNKNOWN


def _typed(spec: ast.Call, point: Point, made: Flow, model: Flow) -> bool:
    """Whether the cache has the type of the model, also where the model's own is quantised."""
    current = "get_current_vllm_config()"
    own = f"(arg3 or {current}.cache_config).cache_dtype"
    types = [f"kv_cache_dtype_str_to_dtype({t}, {current}.model_config)" for t in (own, "'auto'")]
    found = frozenset(t for _, v, p in made.stored("kv_cache_torch_dtype") for t in at(v, p))
    given = [at(keyword(call, "cache_config"), p) for call, p in model.calls(_LAYER)]
    config, plain = "arg1.cache_config", "replace(arg1.cache_config, cache_dtype='auto')"
    # Before the spec had a class of its own, the type of a quantised cache was taken as it is.
    old = last_name(spec.func) == "MLAAttentionSpec"
    whole = all(fits(one, config, plain, needs="" if old else plain) for one in given)
    told = fits(at(keyword(spec, "dtype"), point), "self.kv_cache_torch_dtype")
    return told and fits(found, *types, needs=types[0]) and whole


def blocks(classes: Classes) -> str:
    """Which blocks of a finished request the connector is told of, in order; or ``unknown``.

    They stay the request's where the connector asks for it: freed, another's rows lie in them.
    """
    told = flow(classes, _SCHEDULER[0], f"{_SCHEDULER[1]}._connector_finished")
    if told is None:
        return UNKNOWN
    every = "self.kv_cache_manager.get_block_ids(arg1.request_id)"
    computed = (
        "self.kv_cache_manager.get_block_ids_for_computed_tokens("
        "request_id=arg1.request_id, num_computed_tokens=arg1.num_computed_tokens)"
    )
    first = [_second(call, point) for call, point in told.calls("request_finished")]
    groups = [_second(call, point) for call, point in told.calls("request_finished_all_groups")]
    for word, ids in (("all", every), ("of computed tokens", computed)):
        ones = first and all(fits(one, f"{ids}[0]") for one in first)
        if ones and all(fits(one, ids) for one in groups):
            return word if _in_order(classes, word) and _kept(classes) else UNKNOWN
    return UNKNOWN


def _write(classes: Classes) -> tuple[frozenset[str], frozenset[str]]:
    """Return where the draft layer's writer stores, and what."""
    node = _writer(classes)
    found = through(classes, node) if node else None
    stores = [
        (at(target, point), at(point.node.value, point), point)
        for point in (found.points if found else ())
        if isinstance(point.node, ast.Assign)
        for target in point.node.targets
        if isinstance(target, ast.Subscript)
    ]
    if found is None or len(stores) != 1 or stores[0][2].guards:
        return frozenset(), frozenset()
    kept = unchanged(found, "arg1", "arg2", "arg3", stores=False)
    return stores[0][:2] if kept else (frozenset(), frozenset())


def _writer(classes: Classes) -> Function | None:
    """Return the function to which ``do_kv_cache_update`` hands rows, cache and slots."""
    update = flow(classes, _MODEL, "CacheOnlyAttentionImpl.do_kv_cache_update")
    handed = []
    for point in update.points if update else ():
        call = point.node.value if isinstance(point.node, ast.Expr) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            node = function(classes, _MODEL, call.func.id)
            given = [at(bound(call, node, n), point) for n in (1, 2, 3)] if node else []
            if given and all(fits(one, f"arg{n}") for n, one in enumerate(given, start=2)):
                handed.append((call.func.id, node))
    if update is None or len(handed) != 1:
        return None
    name, node = handed[0]
    return node if unchanged(update, "arg2", "arg3", "arg4", by=[name]) else None


def _reaches_cache(classes: Classes) -> bool:
    """Whether the rows that the model is called with reach the writer, with the layer's slots."""
    model = flow(classes, _MODEL, "ExtractHiddenStatesModel.forward")
    layer = flow(classes, _MODEL, f"{_LAYER}.forward")
    update = flow(classes, _MODEL, "unified_kv_cache_update")
    if model is None or layer is None or update is None:
        return False
    inner = "self.cache_only_layers[str(self.target_num_hidden_layers)](arg1)"
    ran = [
        at(point.node.value, point)
        for point in model.points
        if isinstance(point.node, ast.Assign | ast.Expr)
    ]
    asked = [
        [at(one, point) for one in call.args]
        for call, point in layer.calls("unified_kv_cache_update")
    ]
    there = "get_forward_context().no_compile_layers[arg2]"
    wanted = (
        (there,),
        ("arg1",),
        (f"{there}.kv_cache", f"{there}.kv_cache[get_forward_context().virtual_engine]"),
        ("get_forward_context().slot_mapping.get(arg2)",),
    )
    done = [call.args for call, _ in update.calls("do_kv_cache_update")]
    points = [point for _, point in update.calls("do_kv_cache_update")]
    return (
        any(fits(one, inner) for one in ran)
        and unchanged(model, "arg1", by=[""])
        and unchanged(layer, "arg1", by=["unified_kv_cache_update"])
        and unchanged(update, "arg1", "get_forward_context()", by=["do_kv_cache_update"])
        and len(asked) == 1
        and len(asked[0]) == 2
        and fits(asked[0][0], "arg1")
        and fits(asked[0][1], "self.layer_name")
        and len(done) == 1
        and not any(point.guards for _, point in layer.calls("unified_kv_cache_update"))
        and _only_given(points[0])
        and len(done[0]) == len(wanted)
        and all(fits(at(one, points[0]), *w) for one, w in zip(done[0], wanted, strict=True))
    )


def _only_given(point: Point) -> bool:
    """Whether a point is reached for every layer that has slots."""
    slots = "get_forward_context().slot_mapping.get(arg2)"
    return all(
        guard.holds and fits(forms(guard.test, guard.env), f"{slots} is not None")
        for guard in point.guards
    )


def _passes(call: ast.Call, point: Point, **wanted: str) -> bool:
    return all(fits(at(keyword(call, name), point), form) for name, form in wanted.items())


def _holds(made: Flow, **wanted: str) -> bool:
    """Whether a constructor stores these forms, and only these, under these names."""
    found = {name: [at(value, point) for _, value, point in made.stored(name)] for name in wanted}
    return all(found[n] and all(fits(one, f) for one in found[n]) for n, f in wanted.items())


def _is_made(model: Flow) -> bool:
    calls = list(model.calls(_LAYER))
    sizes = {"num_heads": "self.num_hidden_states", "head_size": "self.hidden_size"}
    return (
        len(calls) == 1
        and _passes(calls[0][0], calls[0][1], **sizes)
        and _holds(
            model,
            num_hidden_states="len(self.hf_config.eagle_aux_hidden_state_layer_ids)",
            hidden_size="arg1.model_config.get_hidden_size()",
        )
    )


def _second(call: ast.Call, point: Point) -> frozenset[str]:
    return at(call.args[1], point) if len(call.args) == 2 else frozenset()


def _in_order(classes: Classes, word: str) -> bool:
    """Whether the manager gives a request's block ids as they are, or their first ones."""
    ids = flow(classes, _MANAGER, "KVCacheManager.get_block_ids")
    plain = flow(classes, _MANAGER, "KVCacheBlocks.get_block_ids")
    if ids is None or plain is None:
        return False
    one = "[[b.block_id for b in g] for g in {}]"
    listed = fits(
        _returned(plain),
        "None",
        one.format("[self.blocks[i] for i in ANY]"),
        needs=one.format("self.blocks"),
    )
    own = flow(classes, _MANAGER, "KVCacheManager.get_blocks")
    held = "self.coordinator.get_blocks(arg1)"
    made = (f"KVCacheBlocks({held})", f"self.create_kv_cache_blocks({held})")
    whole = (
        listed
        and fits(_returned(ids), "self.get_blocks(arg1).get_block_ids()")
        and own is not None
        and fits(_returned(own), *made)
    )
    if word == "all":
        return whole
    cut = flow(classes, _MANAGER, "KVCacheManager.get_block_ids_for_computed_tokens")
    if cut is None:
        return False
    pair = "_each(zip(self.kv_cache_config.kv_cache_groups, self.get_block_ids(arg1)))"
    appended = [
        at(call.args[0], point) for call, point in cut.calls("append") if len(call.args) == 1
    ]
    first = f"{pair}[1][:cdiv(arg2, {pair}[0].kv_cache_spec.block_size)]"
    given = all(fits(one, f"{pair}[1]", first) for one in appended)
    return whole and bool(appended) and given and any(fits(one, first) for one in appended)


def _kept(classes: Classes) -> bool:
    """Whether blocks are freed only where no connector asked to keep them."""
    freed = flow(classes, _SCHEDULER[0], f"{_SCHEDULER[1]}._free_request")
    own = "self._connector_finished(arg1)[0]"
    other = f"({own} | self.ec_connector.request_finished(arg1)[0])"
    forms_ = (f"not {own}", f"not (arg2 | {own})", f"not (arg2 | {other})")
    calls = list(freed.calls("_free_blocks")) if freed else []
    return bool(calls) and all(
        len(point.guards) == 1
        and point.guards[0].holds
        and fits(forms(point.guards[0].test, point.guards[0].env), *forms_)
        for _, point in calls
    )


def _returned(found: Flow) -> frozenset[str]:
    return frozenset(text for value, point in found.returned() for text in at(value, point))


PROBES = {
    "native.cache.written": written,
    "native.cache.read": read,
    "native.cache.spec": shape,
    "native.blocks": blocks,
}
