"""The class of patched ``IrrepsConvolution`` layers of SevenNet.

Pickles of patched models name this class, so neither the module nor the class may move.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..ops import conv
from .fused_state import FusedConvState, parsed_problem
from .paired_weights import PendingWeights, conv_of_pending


class FusedIrrepsConvolution(FusedConvState, torch.nn.Module):
    """An ``IrrepsConvolution`` of SevenNet whose messages and sums run in one kernel.

    Patching changes the class of an existing layer in place. The tensor product stays below it as
    ``convolution``, so that parameters, buffers and ``state_dict`` keep their names.
    """

    convolution: Any
    weight_nn: Any
    denominator: torch.Tensor
    key_x: str
    key_filter: str
    key_weight_input: str
    key_edge_idx: str

    def forward(self, data: Any) -> Any:
        """Replace the features of the nodes by the scaled sums of messages of their neighbours."""
        x, attributes, edges = data[self.key_x], data[self.key_filter], data[self.key_edge_idx]
        dtype = self.convolution.output_mask.dtype
        text = self._current_text(self._mdcg_problem)
        problem = parsed_problem(text, str(dtype).removeprefix("torch."))
        x, attributes = x.to(dtype), attributes.to(dtype)
        weights = self.weight_nn(data[self.key_weight_input])
        receiver, sender = edges[0], edges[1]
        if isinstance(weights, PendingWeights):
            found = conv_of_pending(problem, x, attributes, weights, sender, receiver)
        else:
            found = conv(problem, x, attributes, weights.to(dtype), sender, receiver)
        data[self.key_x] = found.div(self.denominator)
        return data

    def _product(self) -> Any:
        return self.convolution

    def _buffer_holders(self) -> Sequence[torch.nn.Module]:
        return (self.convolution,)
