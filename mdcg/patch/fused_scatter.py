"""The class that a patched ``TensorProductScatter`` of NequIP has.

Pickles of patched models name this class, so neither the module nor the class may move.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, ClassVar

import torch

from ..errors import MdcgError, UnsupportedProblemError
from ..ops import conv
from ..ops.cuda import start_conv
from ..problem import ConvProblem
from .layer import parsed_problem
from .paired_weights import PendingWeights, conv_of_pending

__all__ = ["STOCK", "FusedTensorProductScatter"]

#: The attribute of a patched layer that holds the class it had.
STOCK = "_mdcg_stock"


class FusedTensorProductScatter(torch.nn.Module):
    """A ``TensorProductScatter`` that gathers, multiplies and sums in one.

    Objects are never constructed: patching changes the class of an existing layer in place. The
    tensor product stays below it as ``tp``, so that parameters, buffers and ``state_dict`` are what
    they were. It is no subclass of NequIP's own, because packages bring copies of that.
    """

    _mdcg_problem = ""
    # what must be imported before a model compiled by nequip-compile can be loaded
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
        text = self._mdcg_problem or self._read_problem()
        # autocast may have made the weights bfloat16
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

    def _read_problem(self) -> str:
        self._mdcg_problem = ConvProblem.from_e3nn(self.tp).to_json()
        self._remember()
        return self._mdcg_problem

    def _remember(self) -> None:
        """Parse the problem now, so that the first call may be one that torch.compile traces.

        Kernels for a CUDA device begin to compile, those of all layers side by side.
        """
        mask = self.tp.output_mask
        if self._mdcg_problem and mask.dtype in (torch.float32, torch.float64):
            dtype = str(mask.dtype).removeprefix("torch.")
            start_conv(parsed_problem(self._mdcg_problem, dtype), mask.device)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._remember()

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        before, device = self.tp.output_mask.dtype, self.tp.output_mask.device
        result = super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        after = self.tp.output_mask.dtype
        if after != before:
            self._mdcg_problem = ""  # float32 buffers have rounded the 3j symbols
            if after in (torch.float32, torch.float64):
                # a call says what is wrong; .to() must not stop with half of a model converted
                with suppress(UnsupportedProblemError):
                    self._read_problem()
        elif self.tp.output_mask.device != device:
            self._remember()
        return result

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._mdcg_problem = ""  # files of another e3nn bring 3j symbols of another sign

    def __prepare_scriptable__(self) -> Any:
        raise MdcgError(
            "TorchScript cannot hold mdcg layers: call mdcg.unpatch_model(model) first, "
            "or compile with --mode aotinductor"
        )
