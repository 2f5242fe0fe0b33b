"""Edits of a release's models and their registry: those that break a capture, and harmless ones."""

from __future__ import annotations

from tests.unit.mutated import Break
from tests.unit.surgery import Edit, replaced

DEEPSEEK = "vllm/model_executor/models/deepseek_v2.py"
KIMI = "vllm/model_executor/models/kimi_k25.py"
REGISTRY = "vllm/model_executor/models/registry.py"

INNER = """        hidden_states = self.model(
            input_ids, positions, intermediate_tensors, inputs_embeds
        )
        return hidden_states
"""
WRAPPED = """            inputs_embeds=inputs_embeds,
        )

        return hidden_states
"""
LAYER = """            hidden_states, residual = layer(
                positions, hidden_states, residual, llama_4_scaling
            )
"""
NORM = "hidden_states, _ = self.norm(hidden_states, residual)"
EMBED = "        return self.embed_tokens(input_ids)\n"
V2 = '    "DeepseekV2ForCausalLM": ("deepseek_v2", "DeepseekV2ForCausalLM"),\n'
V3 = '    "DeepseekV3ForCausalLM": ("deepseek_v2", "DeepseekV3ForCausalLM"),\n'
WRAPPER = (
    '    "KimiK25ForConditionalGeneration": ("kimi_k25", "KimiK25ForConditionalGeneration"),\n'
)
MADE = "ModelRegistry = _ModelRegistry("
OVERRIDDEN = "class DeepseekV3ForCausalLM(DeepseekV2ForCausalLM):\n"


def behind(code: str, *, wrapper: bool = False) -> Edit:
    """Put code between the call of the inner model and the return."""
    known = WRAPPED if wrapper else INNER
    lines = "".join(f"        {line}\n" for line in code.splitlines())
    return replaced(known, known.replace("        return hidden_states\n", lines))


def _handed(path: str, edit: Edit) -> Break:
    return Break(path, edit, probes="native.rows.handed-on", hurts="native")


def _called(edit: Edit, probes: str = "", hurts: str = "patched") -> Break:
    return Break(DEEPSEEK, edit, probes=f"deepseek.calls {probes}", hurts=hurts)


def _registered(edit: Edit, name: str, hurts: str = "patched native") -> Break:
    return Break(REGISTRY, edit, probes=f"registry.{name}", hurts=hurts)


UNPACKED = "if isinstance(hidden_states, tuple):\n    hidden_states, aux = hidden_states\n"
CHANGED = {
    "reversed": f"{UNPACKED}    return hidden_states, aux[::-1]\nreturn hidden_states",
    "of the last layers alone": f"{UNPACKED}    return hidden_states, aux[-3:]\n"
    "return hidden_states",
    "rounded": f"{UNPACKED}    aux = [a.to(torch.bfloat16).to(a.dtype) for a in aux]\n"
    "    return hidden_states, aux\nreturn hidden_states",
    "reversed where they lie": "hidden_states[1].reverse()\nreturn hidden_states",
    "changed where they lie": "for state in hidden_states[1]:\n    state.mul_(2)\n"
    "return hidden_states",
    "handed to a function": "settle(hidden_states)\nreturn hidden_states",
    "without the last row": "return hidden_states[0], [a[:-1] for a in hidden_states[1]]",
}

BREAKS: dict[str, Break] = {
    **{
        f"depths {how} behind the text model": _handed(DEEPSEEK, behind(code))
        for how, code in CHANGED.items()
    },
    **{
        f"depths {how} in the wrapper": _handed(KIMI, behind(code, wrapper=True))
        for how, code in CHANGED.items()
    },
    "depths normed behind the text model": _handed(
        DEEPSEEK,
        behind(f"{UNPACKED}    return hidden_states, [self.model.norm(a) for a in aux]\n"
               "return hidden_states")),
    "text model run twice": _handed(
        DEEPSEEK,
        behind("again = self.model(input_ids, positions, intermediate_tensors, inputs_embeds)\n"
               "return hidden_states")),
    "subclass reverses what it inherits": _handed(
        DEEPSEEK, replaced(OVERRIDDEN + "    pass\n", OVERRIDDEN
                           + "    def forward(self, *args, **kwargs):\n"
                             "        last, aux = super().forward(*args, **kwargs)\n"
                             "        return last, aux[::-1]\n")),
    "call of the text model overridden": _handed(
        DEEPSEEK, replaced(OVERRIDDEN + "    pass\n", OVERRIDDEN
                           + "    def __call__(self, *args, **kwargs):\n"
                             "        last, aux = super().__call__(*args, **kwargs)\n"
                             "        return last, aux[::-1]\n")),
    "wrapper's forward wrapped": _handed(
        KIMI, replaced("    def forward(\n        self,\n        input_ids: torch.Tensor,\n",
                       "    @settled\n"
                       "    def forward(\n        self,\n        input_ids: torch.Tensor,\n")),
    "layers called by their forward": _called(
        replaced(LAYER, LAYER.replace("layer(", "layer.forward(", 1)),
        "deepseek.capture.point", hurts="patched native"),
    "some layers called by their forward": _called(
        replaced(LAYER, f"            if idx == 3:\n    {LAYER.replace('layer(', 'layer.forward(')}"
                        f"                continue\n{LAYER}")),
    "norm called by its forward": _called(
        replaced(NORM, NORM.replace("norm(", "norm.forward(", 1))),
    "norm called by its plain forward": _called(
        replaced(NORM, NORM.replace("norm(", "norm.forward_native(", 1))),
    "norm run twice": _called(
        replaced(f"        {NORM}\n", f"        self.norm(hidden_states, residual)\n"
                                      f"        {NORM}\n")),
    "embedding called by its forward": _called(
        replaced(EMBED, EMBED.replace("tokens(", "tokens.forward("))),
    "embedding looked up by its weights": _called(
        replaced(EMBED, "        return F.embedding(input_ids, self.embed_tokens.weight)\n")),
    "plain architecture points to another module": _registered(
        replaced(V3, V3.replace('"deepseek_v2"', '"vllm.models.deepseek"')), "deepseek-v3"),
    "inner architecture points to another class": _registered(
        replaced(V2, V2.replace(', "Deepseek', ', "FastDeepseek')), "deepseek-v2"),
    "wrapper points to another module": _registered(
        replaced(WRAPPER, WRAPPER.replace('("kimi_k25"', '("vllm.models.kimi"')), "kimi"),
    "registry changed behind its tables": _registered(
        replaced(MADE, '_VLLM_MODELS["DeepseekV3ForCausalLM"] = ("fast", "Fast")\n' + MADE),
        "deepseek-v* registry.kimi"),
    "registry filled from elsewhere": _registered(
        replaced(MADE, "_VLLM_MODELS.update(overrides())\n" + MADE),
        "deepseek-v* registry.kimi"),
    "registry changed through a table of its own": _registered(
        replaced(MADE, 'LATER = {"KimiK25ForConditionalGeneration": ("fast", "Fast")}\n'
                       "globals()['_VLLM_' + 'MODELS'] |= LATER\n" + MADE), "kimi"),
}  # fmt: skip

HARMLESS: dict[str, tuple[str, Edit]] = {
    "text model's output returned at once": (
        DEEPSEEK, replaced(INNER, INNER.replace("hidden_states = self", "return self").replace(
            "        return hidden_states\n", ""))),
    "wrapper's output under another name": (
        KIMI, replaced(WRAPPED, WRAPPED.replace("        return hidden_states\n",
                                                "        output = hidden_states\n"
                                                "        return output\n"))),
    "text model called by keywords": (
        DEEPSEEK, replaced("            input_ids, positions, intermediate_tensors, inputs_embeds\n"
                           "        )\n        return hidden_states\n",
                           "            input_ids=input_ids, positions=positions,\n"
                           "            intermediate_tensors=intermediate_tensors,\n"
                           "            inputs_embeds=inputs_embeds,\n"
                           "        )\n        return hidden_states\n")),
    "output told to the log": (
        KIMI, replaced(WRAPPED, WRAPPED.replace(
            "        return", '        logger.debug("%d", len(hidden_states))\n        return'))),
    "norm through a name": (
        DEEPSEEK, replaced(NORM, "norm = self.norm\n        " + NORM.replace("self.norm", "norm"))),
    "embedding through a name": (
        DEEPSEEK, replaced(EMBED, "        states = self.embed_tokens(input_ids)\n"
                                  "        return states\n")),
    "one more architecture": (
        REGISTRY, replaced(V3, V3 + '    "DeepseekV9ForCausalLM": ("fast", "Fast"),\n')),
    "architecture named in a comment": (
        REGISTRY, replaced(V3, '    # As "DeepseekV3ForCausalLM" was before.\n' + V3)),
    "architectures in another order": (REGISTRY, replaced(V2 + V3, V3 + V2)),
}  # fmt: skip
