"""Which answers of a release's probes each consumer works with.

An answer that is in neither set has never been seen: nobody knows whether the consumer works.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.seams import Consumer, Surface

_NATIVE, _PATCHED = Consumer.NATIVE, Consumer.PATCHED
_GENERATOR = Consumer.SPECULATORS_0_3
_WRAPPER = "kimi_k25:KimiK25ForConditionalGeneration"


@dataclass(frozen=True)
class Need:
    """One consumer's reliance on one answer.

    Attributes:
        by: The consumer.
        probe: The probe.
        works: Answers that it works with, by a test on a real engine or by a patch.
        fails: Answers that were seen in some release, and that it does not work with.
    """

    by: Consumer
    probe: str
    works: frozenset[str]
    fails: frozenset[str] = frozenset()

    def judge(self, surface: Surface) -> str:
        """Return ``works``, ``fails`` or ``unknown``."""
        value = surface.probe(self.probe)
        if value in self.works:
            return "works"
        return "fails" if value in self.fails else "unknown"


def _need(by: Consumer, probe: str, works: str, fails: str = "") -> Need:
    return Need(by, probe, frozenset(works.split(" | ")), frozenset(fails.split(" | ")) - {""})


NEEDS: tuple[Need, ...] = (
    _need(_NATIVE, "native.targets", "any | listed with kimi", "absent | listed"),
    _need(_NATIVE, "native.connector.write", "finish, locked", "absent | step | step, locked"),
    _need(_NATIVE, "native.connector.rank", "0", "absent | all"),
    _need(_NATIVE, "native.connector.layout", "NHD | LBNHC", "absent"),
    _need(_NATIVE, "native.connector.finished-count", "own | inherited", "absent"),
    _need(_NATIVE, "runner-v2.opt-out", "absent | yes"),
    *(
        _need(_NATIVE, probe, works, fails)
        for probe, works, fails in (
            ("native.method", "extract_hidden_states", "absent"),
            ("native.layer-ids", "as configured", "absent"),
            # Of models other than DeepSeek's, but the one reading serves all.
            ("eagle3.mixin.layer-ids", "as told | sorted, each once", "absent"),
            ("eagle3.mixin.state", "sum", "absent"),
            ("native.rows.handed-on", "as returned", "absent"),
            ("native.rows.when", "all that fit", "absent"),
            ("native.rows.cut", "scheduled, each depth in order", "absent"),
            ("native.rows.axes", "token, depth, hidden", "absent"),
            # Before 0.22.0 the slots of the first group, whoever's it is.
            (
                "native.rows.slots",
                "the batch's, drafter group",
                "absent | the batch's, first group",
            ),
            *(
                (
                    f"native.cache.{one}",
                    "block, token, depth, hidden | block, depth, token, hidden",
                    "absent | flat, token, depth, hidden",
                )
                for one in ("written", "read")
            ),
            ("native.cache.spec", "HiddenStateCacheSpec", "absent | MLAAttentionSpec"),
            ("native.blocks", "all | of computed tokens", ""),
            ("native.slots", "place in its block", ""),
            ("native.saved.rows", "of its blocks", "absent | of its slots | of the step"),
            ("native.saved.tokens", "prompt, or all but the last", "absent | prompt"),
            (
                "native.saved.group",
                "by its class | by the layer's name",
                "absent | the only one | the first",
            ),
            ("native.saved.cache", "the draft layer's", "absent | of each call"),
            ("native.saved.written", "after the copy", "absent | at once"),
            ("native.saved.released", "after its copy", "absent | at once"),
            (
                "native.saved.keys",
                "shared_storage_path, use_synchronization_lock",
                "absent | shared_storage_path",
            ),
        )
    ),
    _need(_NATIVE, "deepseek.capture", "inner, final", "none | inner"),
    _need(_NATIVE, "deepseek.capture.point", "before", "none"),
    _need(_NATIVE, "deepseek.supports-eagle3", "yes", "no"),
    _need(_NATIVE, "kimi.supports-eagle3", "yes", "no | absent"),
    _need(_NATIVE, "kimi.language-model", "DeepseekV2ForCausalLM", "DeepseekV2Model | absent"),
    *(
        _need(by, probe, works)
        for by in (_NATIVE, _PATCHED, _GENERATOR)
        for probe, works in (
            ("worker-extension.mixed-in", "bases"),
            ("worker-extension.collisions", "-"),
        )
    ),
    *(
        _need(by, probe, works)
        for by in (_PATCHED, _GENERATOR)
        for probe, works in (
            ("kimi.language-model", "absent | DeepseekV2Model | DeepseekV2ForCausalLM"),
            ("runner-v2.opt-out", "absent | yes"),
            ("runner-v2.default-for", "absent | opt-in | listed | all"),
            ("deepseek.layer.token-sharded", "no | yes"),
            ("execute-model.two-phase", "no | yes"),
        )
    ),
    _need(_PATCHED, "deepseek.calls", "as modules"),
    *(
        _need(by, f"registry.{one}", works)
        for by in (_NATIVE, _PATCHED, _GENERATOR)
        for one, works in (
            ("deepseek-v2", "deepseek_v2:DeepseekV2ForCausalLM"),
            ("deepseek-v3", "deepseek_v2:DeepseekV3ForCausalLM"),
        )
    ),
    _need(_NATIVE, "registry.kimi", _WRAPPER, "absent"),
    *(_need(by, "registry.kimi", f"absent | {_WRAPPER}") for by in (_PATCHED, _GENERATOR)),
    *(
        _need(_GENERATOR, probe, works)
        for probe, works in (
            ("execute-model.reentry-guard", "none | raises"),
            ("collective-rpc.single-reply", "bare | list"),
            ("async-scheduling.default", "on | off"),
            ("prefix-caching.default", "None | True | False"),
            ("initialize-from-config.warms-up", "yes | no"),
            ("current-config.unset", "warns | raises"),
            ("scheduler-config.required", "- | is_encoder_decoder, max_model_len"),
            ("mla-block-size.overwritten", "yes | no"),
        )
    ),
)


def needs_of(consumer: Consumer) -> Iterator[Need]:
    """Yield what a consumer needs of the probes."""
    return (need for need in NEEDS if need.by is consumer)
