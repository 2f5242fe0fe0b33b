"""Makes the calls of speculators 0.3.0's worker extension, with its faults; see ``generator``."""

from __future__ import annotations

import types

import torch
from vllm.distributed import get_tp_group
from vllm.model_executor.models.interfaces import supports_eagle3


def _patched_forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
    hidden, residual, taken = self.get_input_embeddings(input_ids), None, []
    wanted = self._extension._layer_ids if get_tp_group().rank_in_group == 0 else frozenset()
    for number, layer in enumerate(self.layers):
        hidden, residual = layer(hidden_states=hidden, positions=positions, residual=residual)
        if number in wanted:
            taken.append((hidden + residual).clone())
    hidden, _ = self.norm(hidden, residual)
    if taken:
        self._extension._store_captured_states(taken)
    return hidden


class HiddenStatesWorkerExtension:
    def _setup_hidden_states_capture(self, layer_ids):
        self._layer_ids, self._captured_states = frozenset(layer_ids), None
        model = self.model_runner.model
        if not supports_eagle3(model):
            raise ValueError(
                f"Model {type(model).__name__} does not support hidden state extraction"
            )
        base = model.model
        base._extension = self
        base.forward = types.MethodType(_patched_forward, base)

    def _store_captured_states(self, taken):
        if self._captured_states is None:
            self._captured_states = [[states] for states in taken]
        else:
            for kept, states in zip(self._captured_states, taken, strict=True):
                kept.append(states)

    def _reset_capture(self):
        self._captured_states = None

    def _get_captured_states(self):
        kept = self._captured_states
        if kept is None:
            return None
        result = [torch.cat(pieces, dim=0) for pieces in kept]
        self._captured_states = None
        return result
