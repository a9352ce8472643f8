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
    """A ``TensorProductScatter`` of NequIP that runs in one kernel.

    Patching changes the class of an existing layer in place. The tensor product stays below it as
    ``tp``, so that parameters, buffers and ``state_dict`` keep their names. It does not derive from
    NequIP's class, because packages contain copies of it.
    """

    _mdcg_advice = "or compile with --mode aotinductor"
    # a model compiled by nequip-compile can be loaded only after this module has been imported
    _nequip_custom_ops_libs: ClassVar[tuple[str, ...]] = ("mdcg.ops",)

    tp: Any

    def forward(
        self,
        x: torch.Tensor,  # [num_nodes, feature_irreps_in.dim]
        edge_attr: torch.Tensor,  # [num_edges, irreps_edge_attr.dim]
        edge_weight: torch.Tensor | PendingWeights,  # [num_edges, tp.weight_numel]
        edge_dst: torch.Tensor,  # [num_edges], receivers
        edge_src: torch.Tensor,  # [num_edges], senders
    ) -> torch.Tensor:
        """Evaluate the convolution; returns [num_nodes, irreps_mid.dim]."""
        text = self._current_text(self._mdcg_problem)
        # autocast may have converted some of them to bfloat16
        dtype = self.tp.output_mask.dtype
        problem = parsed_problem(text, str(dtype).removeprefix("torch."))
        x, edge_attr = x.to(dtype), edge_attr.to(dtype)
        if isinstance(edge_weight, PendingWeights):
            return conv_of_pending(problem, x, edge_attr, edge_weight, edge_src, edge_dst)
        return conv(problem, x, edge_attr, edge_weight.to(dtype), edge_src, edge_dst)

    def _product(self) -> Any:
        return self.tp

    def _buffer_holders(self) -> Sequence[torch.nn.Module]:
        return (self.tp,)
