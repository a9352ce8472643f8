"""The class of patched ``TensorProductScatter`` layers of NequIP.

Pickles of patched models name this class, so neither the module nor the class may move.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from ..ops import conv
from .fused_state import FusedConvState, parsed_problem
from .paired_weights import PendingWeights, conv_of_pending


class FusedTensorProductScatter(FusedConvState, torch.nn.Module):
    """A ``TensorProductScatter`` that gathers, multiplies and sums in one.

    Objects are never constructed: patching changes the class of an existing layer in place. The
    tensor product stays below it as ``tp``, so that parameters, buffers and ``state_dict`` are what
    they were. It does not derive from NequIP's class, because packages contain copies of it.
    """

    _mdcg_advice = "or compile with --mode aotinductor"
    # a model compiled by nequip-compile can be loaded only after this module has been imported
    _nequip_custom_ops_libs: ClassVar[tuple[str, ...]] = ("mdcg.ops",)

    tp: Any

    def forward(
        self,
        x: torch.Tensor,
        edge_attr: torch.Tensor,
        edge_weight: torch.Tensor | PendingWeights,
        edge_dst: torch.Tensor,
        edge_src: torch.Tensor,
    ) -> torch.Tensor:
        """Evaluate the convolution.

        Parameters
        ----------
        x : torch.Tensor, shape (n_nodes, feature_irreps_in.dim)
        edge_attr : torch.Tensor, shape (n_edges, irreps_edge_attr.dim)
        edge_weight : torch.Tensor, shape (n_edges, tp.weight_numel), or PendingWeights
        edge_dst, edge_src : torch.Tensor of int, shape (n_edges,)
            Receiver and sender.

        Returns
        -------
        torch.Tensor, shape (n_nodes, irreps_mid.dim)
        """
        text = self._current(self._mdcg_problem)
        # autocast may have converted the weights to bfloat16
        dtype = self.tp.output_mask.dtype
        problem = parsed_problem(text, str(dtype).removeprefix("torch."))
        if isinstance(edge_weight, PendingWeights):
            operands = (x.to(dtype), edge_attr.to(dtype), edge_weight)
            return conv_of_pending(problem, *operands, edge_src, edge_dst)
        return conv(
            problem,
            x.to(dtype),
            edge_attr.to(dtype),
            edge_weight.to(dtype),
            edge_src,
            edge_dst,
        )

    def _product(self) -> Any:
        return self.tp

    def _parts(self) -> Sequence[torch.nn.Module]:
        return (self.tp,)
