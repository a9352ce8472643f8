"""The class of patched ``conv_tp`` layers: a tensor product that can do the whole convolution.

Pickles of patched models name this class, so neither the module nor the class may move.
"""

from __future__ import annotations

from typing import Any

import torch

from ..ops import conv
from ._frameworks import import_e3nn_o3
from .fused_state import FusedConvState, parsed_problem
from .paired_weights import PendingWeights, conv_of_pending

o3 = import_e3nn_o3()


class FusedConvTensorProduct(FusedConvState, o3.TensorProduct):  # type: ignore[misc, name-defined]
    """An ``e3nn.o3.TensorProduct`` that does the whole convolution if given edges.

    Patching changes the class of an existing tensor product in place, so that parameters, buffers,
    ``state_dict``, hooks, copying and pickling stay e3nn's own. The 3j symbols are those of the
    object's buffers, read again after ``load_state_dict`` or a change of dtype.
    """

    def forward(
        self,
        x: torch.Tensor,  # [num_nodes, irreps_in1.dim]; without edge_index one row per row of y
        y: torch.Tensor,  # [num_edges, irreps_in2.dim]
        weight: torch.Tensor | PendingWeights | None = None,  # [num_edges, weight_numel]
        edge_index: torch.Tensor | None = None,  # [2, num_edges], senders and receivers
    ) -> torch.Tensor:
        """Evaluate the convolution, or e3nn's product of rows without `edge_index`."""
        if edge_index is None:
            if isinstance(weight, PendingWeights):
                weight = weight.compute()
            return super().forward(x, y, weight)
        if torch.is_autocast_enabled(x.device.type):
            # autocast may have converted some of them to bfloat16
            x, y = x.to(self.output_mask.dtype), y.to(self.output_mask.dtype)
            if isinstance(weight, torch.Tensor):
                weight = weight.to(x.dtype)
        text = self._current_text(self._mdcg_problem)
        problem = parsed_problem(text, str(x.dtype).removeprefix("torch."))
        if isinstance(weight, PendingWeights):
            return conv_of_pending(problem, x, y, weight, edge_index[0], edge_index[1])
        return conv(problem, x, y, self._get_weights(weight), edge_index[0], edge_index[1])

    def _product(self) -> Any:
        return self
