"""Probes of the stock connector: which rows it saves, with which tokens, and when it lets go.

The harness's own connector is a subclass of it and keeps its bookkeeping; speculators reads the
files that it writes.
"""

from __future__ import annotations

import ast

from harness.seams._classes import Class, Classes
from harness.seams._flow import Flow, Point
from harness.seams._forms import at, fits, forms, keyword
from harness.seams._in_place import unchanged
from harness.seams._reading import ABSENT, UNKNOWN, flow, is_one_of, methods_with, through

_STOCK = (
    "vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector",
    "ExampleHiddenStatesConnector",
)
_READER = "extract_from_kv_cache"
_READ = "extract_from_kv_cache({cache}, {slots}, {tokens}.token_ids.shape[0])"
_IDS = "torch.tensor(arg1.block_ids, dtype=torch.long)"
_OFFSETS = "torch.arange(0, self._block_size, dtype=torch.long).reshape(1, self._block_size)"
_SLOTS = f"({_OFFSETS} + {_IDS}.reshape({_IDS}.shape[0], 1) * self._block_size).flatten()"
_EACH = "_each(self._get_connector_metadata().requests)"
_STEP = "get_forward_context().slot_mapping[arg1]"


def rows(classes: Classes) -> str:
    """Which rows the stock connector saves, for as many tokens as it tells."""
    found = classes.find(*_STOCK)
    if found is None:
        return ABSENT
    saved = _saved(classes, found)
    if saved is None:
        return UNKNOWN
    table, point = saved
    pairs = dict(zip(table.keys, table.values, strict=True))
    held = {str(getattr(key, "value", "")): at(value, point) for key, value in pairs.items()}
    states, tokens = held.get("hidden_states", ()), held.get("token_ids", ())
    own, step = _READ.format(cache="self._kv_cache", slots=_SLOTS, tokens="arg1"), "arg2"
    slots, part = f"{_EACH}.slot_mapping", f"{_STEP}[ANY:ANY + {_EACH}.token_ids.shape[0]]"
    first = f"{_STEP}[:0 + {_EACH}.token_ids.shape[0]]"
    asked = {
        "of its blocks": (states, "arg1", [own]),
        "of its slots": (states, _EACH, [_READ.format(cache=step, slots=slots, tokens=_EACH)]),
        "of the step": (
            states,
            _EACH,
            [_READ.format(cache=step, slots=one, tokens=_EACH) for one in (part, first)],
        ),
    }
    return is_one_of(
        {
            word: fits(texts, *known) and fits(tokens, f"{whose}.token_ids")
            for word, (texts, whose, known) in asked.items()
        }
    )


def tokens(classes: Classes) -> str:
    """Whose token ids a file has: ``prompt``, or with all but the last of the output on demand."""
    found = classes.find(*_STOCK)
    if found is None:
        return ABSENT
    made = flow(classes, _STOCK[0], f"{_STOCK[1]}.request_finished")
    saves = list(made.calls("PendingSave")) if made else []
    if not saves:
        meta = flow(classes, _STOCK[0], f"{_STOCK[1]}.build_connector_meta")
        told = (
            [at(keyword(call, "token_ids"), p) for call, p in meta.calls("add_request")]
            if (meta)
            else []
        )
        return "prompt" if told and all(fits(one, *_PROMPTS) for one in told) else UNKNOWN
    (call, point), *more = saves
    ids, blocks = at(keyword(call, "token_ids"), point), at(keyword(call, "block_ids"), point)
    output = "torch.tensor(arg1.all_token_ids[:-1])"
    prompt = "torch.tensor(arg1.prompt_token_ids)"
    whole = fits(ids, output, "torch.tensor([], dtype=torch.long)", needs=prompt)
    if more or made is None or not whole or not fits(blocks, "arg2"):
        return UNKNOWN
    return "prompt, or all but the last" if _on_demand(made) else UNKNOWN


_PROMPTS = (
    "_each(arg1.scheduled_new_reqs).prompt_token_ids or []",
    "ANY.prompt_token_ids or []",
)


def group(classes: Classes) -> str:
    """How the connector finds the cache group whose blocks it reads, and their size."""
    found = classes.find(*_STOCK)
    if found is None:
        return ABSENT
    passed = flow(classes, _STOCK[0], f"{_STOCK[1]}.request_finished_all_groups")
    made = flow(classes, _STOCK[0], f"{_STOCK[1]}.__init__")
    if made is None:
        return UNKNOWN
    size = frozenset(text for _, value, p in made.stored("_block_size") for text in at(value, p))
    if passed is None or _STOCK[1] not in _owner(classes, found, "request_finished_all_groups"):
        return "the only one" if fits(size, "arg1.cache_config.block_size") else UNKNOWN
    if not any(one.name == "SupportsHMA" for one in classes.order(found)):
        return UNKNOWN  # the scheduler asks for that class before it tells all groups
    given = frozenset(
        text
        for call, point in passed.calls("request_finished")
        for text in (at(call.args[1], point) if len(call.args) == 2 else ("",))
    )
    words = {
        "the first": fits(given, "arg2[0]") and fits(size, "arg1.cache_config.block_size"),
        "by the layer's name": fits(given, "arg2[self._hs_group_idx]")
        and fits(size, "arg1.cache_config.block_size")
        and _by_name(classes, found),
        "by its class": fits(given, "arg2[self._cache_kv_group_id]")
        and fits(size, "self._get_cache_block_size(arg1, arg3, self._cache_kv_group_id)")
        and _by_class(classes, made),
    }
    return is_one_of(words)


def cache(classes: Classes) -> str:
    """Which tensor the connector reads: the draft layer's own, or the one of each call."""
    found = classes.find(*_STOCK)
    if found is None:
        return ABSENT
    given = flow(classes, _STOCK[0], f"{_STOCK[1]}.register_kv_caches")
    if given is None:
        return UNKNOWN
    layers = frozenset(t for _, v, p in given.stored("cache_layers") for t in at(v, p))
    kept = frozenset(t for _, v, p in given.stored("_kv_cache") for t in at(v, p))
    asked = "get_layers_from_vllm_config(self._vllm_config, CacheOnlyAttentionLayer, arg1.keys())"
    if not fits(layers, f"{asked}.keys()"):
        return UNKNOWN
    if not kept:
        return "of each call"
    return "the draft layer's" if fits(kept, "arg1[self.cache_layers[0]]") else UNKNOWN


def released(classes: Classes) -> str:
    """When a request's blocks may be freed: ``after its copy``, ``at once``, or ``unknown``."""
    found = classes.find(*_STOCK)
    if found is None:
        return ABSENT
    told = flow(classes, _STOCK[0], f"{_STOCK[1]}.get_finished")
    if told is None or _STOCK[1] not in _owner(classes, found, "get_finished"):
        return "at once"
    ready = f"self._req_copy_events.get({_DONE})"
    done = [point for call, point in told.calls("add")]
    asked = [
        [(text, guard.holds) for guard in point.guards for text in forms(guard.test, guard.env)]
        for point in done
    ]
    waits = (
        [(f"{ready} is None or {ready}.query()", True)],
        [
            (f"{ready} is not None and not {ready}.query()", False),
            (f"{ready} is not None", True),
        ],
    )
    sent = all(
        len(one) == len(two)
        and all(
            fits([text], form) and holds == wanted
            for (text, holds), (form, wanted) in zip(one, two, strict=True)
        )
        for one in asked
        for two in [w for w in waits if len(w) == len(one)] or [[]]
    )
    last = flow(classes, _STOCK[0], f"{_STOCK[1]}.request_finished")
    held = frozenset(t for v, p in last.returned() for t in at(v, p)) if last else ()
    kept = fits(held, "(False, None)", needs="(True, {'hidden_states_path': ANY})")
    return "after its copy" if done and sent and all(asked) and kept else UNKNOWN


_DONE = "_each(self._accumulated_finished_req_ids)"


def storage(classes: Classes) -> str:
    """Under which keys the connector is told its folder, and to do without lock files."""
    made = flow(classes, _STOCK[0], f"{_STOCK[1]}.__init__")
    if made is None:
        return ABSENT if classes.find(*_STOCK) is None else UNKNOWN
    asked = "self._kv_transfer_config.get_from_extra_config"
    keys = {
        "_storage_path": f"{asked}('shared_storage_path', '/tmp')",
        "use_lock": f"{asked}('use_synchronization_lock', True)",
    }
    told = []
    for name, form in keys.items():
        texts = frozenset(text for _, value, p in made.stored(name) for text in at(value, p))
        if texts and not fits(texts, form):
            return UNKNOWN
        told += [form.split("'")[1]] if texts else []
    return ", ".join(told) if "shared_storage_path" in told else UNKNOWN


def _saved(classes: Classes, found: Class) -> tuple[ast.Dict, Point] | None:
    """Return the table of tensors that is written, and where it is made."""
    makers = [through(classes, one) for one in methods_with(classes, found, "tensors = {")]
    tables = [
        (part.node.value, part)
        for made in makers
        if unchanged(made, "self._kv_cache", _READER, by=["save_file", _READER], own=False)
        for part in made.points
        if isinstance(part.node, ast.Assign) and isinstance(part.node.value, ast.Dict)
    ]
    return tables[0] if len(tables) == 1 else None


def _on_demand(made: Flow) -> bool:
    """Whether output is added only where the request asks for it."""
    asked = "(arg1.kv_transfer_params or {}).get('include_output_tokens', False)"
    added = [
        point
        for point in made.points
        if isinstance(point.node, ast.Assign) and "all_token_ids" in ast.unparse(point.node)
    ]
    return bool(added) and all(
        any(guard.holds and fits(forms(guard.test, guard.env), asked) for guard in point.guards)
        for point in added
    )


def _owner(classes: Classes, found: Class, name: str) -> str:
    member = classes.member(found, name)
    return "" if member is None else member.owner.name


def _by_class(classes: Classes, made: Flow) -> bool:
    """Whether group and block size are those of the group whose spec is the capture's own."""
    chosen = frozenset(
        text for _, value, p in made.stored("_cache_kv_group_id") for text in at(value, p)
    )
    find = flow(classes, _STOCK[0], f"{_STOCK[1]}._find_cache_kv_group_id")
    size = flow(classes, _STOCK[0], f"{_STOCK[1]}._get_cache_block_size")
    if find is None or size is None or not fits(chosen, "self._find_cache_kv_group_id(arg3)"):
        return False
    number = frozenset(text for value, p in find.returned() for text in at(value, p))
    sizes = frozenset(text for value, p in size.returned() for text in at(value, p))
    own = (
        "[i for i, g in enumerate(arg1.kv_cache_groups) "
        "if isinstance(g.kv_cache_spec, HiddenStateCacheSpec)][0]"
    )
    spec = "arg2.kv_cache_groups[arg3].kv_cache_spec.block_size"
    return fits(number, "0", needs=own) and fits(sizes, "arg1.cache_config.block_size", needs=spec)


def _by_name(classes: Classes, found: Class) -> bool:
    """Whether the group is the one that has the draft layer."""
    given = flow(classes, _STOCK[0], f"{_STOCK[1]}.register_kv_caches")
    groups = "enumerate(self._kv_cache_config.kv_cache_groups)"
    stores = list(given.stored("_hs_group_idx")) if given else []
    return bool(stores) and all(
        fits(at(value, point), f"_each({groups})[0]")
        and any(
            guard.holds
            and fits(
                forms(guard.test, guard.env),
                f"self.cache_layers[0] in _each({groups})[1].layer_names",
            )
            for guard in point.guards
        )
        for _, value, point in stores
    )


def copied(classes: Classes) -> str:
    """When a file is written: ``after the copy`` to the host, ``at once``, or ``unknown``."""
    found = classes.find(*_STOCK)
    if found is None:
        return ABSENT
    written = flow(classes, _STOCK[0], f"{_STOCK[1]}._write_tensors")
    if written is None:
        return "at once" if flow(classes, _STOCK[0], f"{_STOCK[1]}.save_kv_layer") else UNKNOWN
    order = {point: n for n, point in enumerate(written.points)}
    waits = [
        order[point]
        for call, point in written.calls("synchronize")
        if isinstance(call.func, ast.Attribute) and fits(at(call.func.value, point), "arg2")
    ]
    saves = [
        (order[point], [at(one, point) for one in call.args])
        for call, point in written.calls("save_file")
    ]
    if len(saves) != 1 or not waits or waits[0] > saves[0][0] or len(saves[0][1]) != 2:
        return UNKNOWN
    tensors, file = saves[0][1]
    return "after the copy" if fits(tensors, "arg1") and fits(file, "arg3") else UNKNOWN


PROBES = {
    "native.saved.rows": rows,
    "native.saved.tokens": tokens,
    "native.saved.group": group,
    "native.saved.cache": cache,
    "native.saved.released": released,
    "native.saved.keys": storage,
    "native.saved.written": copied,
}
