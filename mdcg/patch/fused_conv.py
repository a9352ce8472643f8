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

#: The attribute of a MACE interaction block that makes it call ``conv_tp`` with the edge index.
HOOK = "conv_fusion"
HOOK_VALUE = "mdcg"


class FusedConvTensorProduct(FusedConvState, o3.TensorProduct):  # type: ignore[misc, name-defined]
    """An ``e3nn.o3.TensorProduct`` that, given the edges, gathers, multiplies and sums in one.

    Objects are never constructed: patching changes the class of an existing tensor product in
    place, so that parameters, buffers, ``state_dict``, hooks, copying and pickling stay e3nn's own.
    The 3j symbols are those of the object's own buffers, read again after the buffers change
    through ``load_state_dict`` or a change of dtype.
    """

    def forward(
        self,
        x: torch.Tensor,
        y: torch.Tensor,
        weight: torch.Tensor | PendingWeights | None = None,
        edge_index: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Evaluate the product on rows, or the convolution if `edge_index` is given.

        Parameters
        ----------
        x : torch.Tensor, shape (n_nodes, irreps_in1.dim)
            Node features; without `edge_index` one row per row of `y`.
        y : torch.Tensor, shape (n_edges, irreps_in2.dim)
        weight : torch.Tensor, shape (n_edges, weight_numel), or PendingWeights
        edge_index : torch.Tensor of int, shape (2, n_edges), optional
            Row 0 sender, row 1 receiver.

        Returns
        -------
        torch.Tensor, shape (n_nodes, irreps_out.dim)
            Without `edge_index`, what e3nn returns: shape (n_edges, irreps_out.dim).
        """
        if edge_index is None:
            if isinstance(weight, PendingWeights):
                weight = weight.compute()
            rows: torch.Tensor = super().forward(x, y, weight)
            return rows
        if torch.is_autocast_enabled(x.device.type):
            # autocast may have converted some of them to bfloat16
            x, y = x.to(self.output_mask.dtype), y.to(self.output_mask.dtype)
            if isinstance(weight, torch.Tensor):
                weight = weight.to(x.dtype)
        text = self._current(self._mdcg_problem)
        problem = parsed_problem(text, str(x.dtype).removeprefix("torch."))
        if isinstance(weight, PendingWeights):
            return conv_of_pending(problem, x, y, weight, edge_index[0], edge_index[1])
        return conv(problem, x, y, self._get_weights(weight), edge_index[0], edge_index[1])

    def _product(self) -> Any:
        return self
