"""The class of patched self-connections of NequIP and skip connections of MACE.

Pickles of patched models name this class, so neither the module nor the class may move.
"""

from __future__ import annotations

from typing import Any

import torch

from ..errors import MdcgError
from ._frameworks import import_e3nn_o3
from .fused_state import parsed_problem
from .species_product import SpeciesProduct, can_group

o3 = import_e3nn_o3()

_products: dict[tuple[str, str], SpeciesProduct] = {}


class _Grouped:
    """Stands before an e3nn ``FullyConnectedTensorProduct`` among the base classes."""

    _mdcg_problem = ""

    def forward(
        self, x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Evaluate the product on rows.

        Equal rows of `y` share a matrix where `y` is a constant; otherwise, as in training, this
        is e3nn's own computation.

        Parameters
        ----------
        x : torch.Tensor, shape (..., irreps_in1.dim)
        y : torch.Tensor, shape (..., irreps_in2.dim)
        weight : torch.Tensor, optional

        Returns
        -------
        torch.Tensor, shape (..., irreps_out.dim)
        """
        module: Any = self
        if weight is None and can_group(x, y):
            return self._product().grouped(x, y, module.weight)
        rows: torch.Tensor = super().forward(x, y, weight)  # type: ignore[misc]
        return rows

    def _product(self) -> SpeciesProduct:
        module: Any = self
        dtype = str(module.output_mask.dtype).removeprefix("torch.")
        key = (self._mdcg_problem, dtype)
        if key not in _products:
            _products[key] = SpeciesProduct(parsed_problem(*key))
        return _products[key]

    def __prepare_scriptable__(self) -> Any:
        raise MdcgError(
            "TorchScript cannot hold mdcg layers: call mdcg.unpatch_model(model) first, "
            "or give the file from before mdcg-patch to the tool that makes TorchScript"
        )


class FusedFullyConnectedTensorProduct(_Grouped, o3.FullyConnectedTensorProduct):  # type: ignore[misc, name-defined]
    """An ``e3nn.o3.FullyConnectedTensorProduct`` with scalars whose rows repeat.

    Objects are never constructed: patching changes the class of an existing tensor product in
    place, so that parameters, buffers, ``state_dict``, copying and pickling stay e3nn's own.
    """


_of_stock: dict[type, type] = {
    o3.FullyConnectedTensorProduct: FusedFullyConnectedTensorProduct,
}


def fused_class(stock: type) -> type:
    """Return the class for patched layers of a stock class, which may be a package's copy."""
    if stock not in _of_stock:
        name = FusedFullyConnectedTensorProduct.__name__
        _of_stock[stock] = type(name, (_Grouped, stock), {"__module__": __name__})
    return _of_stock[stock]
