"""The class that a patched ``conv_tp`` has: a tensor product that can do the whole convolution.

Pickles of patched models name this class, so neither the module nor the class may move.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch

from ..errors import MdcgError, UnsupportedProblemError
from ..ops import conv
from ..ops.cuda import start_conv
from ..problem import ConvProblem
from ._frameworks import import_e3nn_o3
from .layer import parsed_problem
from .paired_weights import PendingWeights, conv_of_pending

__all__ = ["HOOK", "HOOK_VALUE", "FusedConvTensorProduct"]

o3 = import_e3nn_o3()

#: The attribute of a MACE interaction block that makes it call ``conv_tp`` with the edge index.
HOOK = "conv_fusion"
HOOK_VALUE = "mdcg"


class FusedConvTensorProduct(o3.TensorProduct):  # type: ignore[misc, name-defined]
    """An ``e3nn.o3.TensorProduct`` that, given the edges, gathers, multiplies and sums in one.

    Objects are never constructed: patching changes the class of an existing tensor product in
    place, so that parameters, buffers, ``state_dict``, hooks, copying and pickling stay e3nn's own.
    The 3j symbols are those of the object's own buffers, read again after the buffers change
    through ``load_state_dict`` or a change of dtype.
    """

    _mdcg_problem = ""

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
        text: str = self._mdcg_problem or self._read_problem()
        problem = parsed_problem(text, str(x.dtype).removeprefix("torch."))
        if isinstance(weight, PendingWeights):
            return conv_of_pending(problem, x, y, weight, edge_index[0], edge_index[1])
        return conv(problem, x, y, self._get_weights(weight), edge_index[0], edge_index[1])

    def _read_problem(self) -> str:
        self._mdcg_problem = ConvProblem.from_e3nn(self).to_json()
        self._remember()
        return self._mdcg_problem

    def _remember(self) -> None:
        """Parse the problem now, so that the first call may be one that torch.compile traces.

        Kernels for a CUDA device begin to compile, those of all layers side by side.
        """
        if self._mdcg_problem:
            dtype = str(self.output_mask.dtype).removeprefix("torch.")
            start_conv(parsed_problem(self._mdcg_problem, dtype), self.output_mask.device)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._remember()

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        dtype, device = self.output_mask.dtype, self.output_mask.device
        result = super()._apply(*args, **kwargs)
        # a call says what is wrong; .to() must not stop with half of a model converted
        with suppress(UnsupportedProblemError):
            if self.output_mask.dtype != dtype:
                self._mdcg_problem = ""  # float32 buffers have rounded the 3j symbols
                if self.output_mask.dtype in (torch.float32, torch.float64):
                    self._read_problem()
            elif self.output_mask.device != device:
                self._remember()
        return result

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._mdcg_problem = ""  # files of another e3nn bring 3j symbols of another sign

    def __prepare_scriptable__(self) -> Any:
        raise MdcgError(
            "TorchScript cannot hold mdcg layers: call mdcg.unpatch_model(model) first, "
            "or give the file from before mdcg-patch to the tool that makes TorchScript"
        )
