"""The class of patched self-connections of NequIP and skip connections of MACE.

Pickles of patched models name this class, so neither the module nor the class may move.
"""

from __future__ import annotations

from typing import Any

import torch

from ._frameworks import import_e3nn_o3
from .fused_state import WithoutTorchScript, parsed_problem
from .species_product import SpeciesProduct, can_group

o3 = import_e3nn_o3()

_products: dict[tuple[str, str], SpeciesProduct] = {}


class _Grouped(WithoutTorchScript):
    """Base class that goes before an e3nn ``FullyConnectedTensorProduct``."""

    _mdcg_problem = ""

    def forward(
        self,
        x: torch.Tensor,  # [..., irreps_in1.dim]
        y: torch.Tensor,  # [..., irreps_in2.dim]
        weight: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Evaluate the product on rows; equal rows of a constant `y` share a matrix.

        Where `y` has a gradient, as in training, this is e3nn's own computation.
        """
        module: Any = self
        if weight is None and can_group(x, y):
            return self._product().grouped(x, y, module.weight)
        return super().forward(x, y, weight)

    def _product(self) -> SpeciesProduct:
        module: Any = self
        dtype = str(module.output_mask.dtype).removeprefix("torch.")
        key = (self._mdcg_problem, dtype)
        if key not in _products:
            _products[key] = SpeciesProduct(parsed_problem(*key))
        return _products[key]


class FusedFullyConnectedTensorProduct(_Grouped, o3.FullyConnectedTensorProduct):  # type: ignore[misc, name-defined]
    """A ``FullyConnectedTensorProduct`` with scalars whose rows repeat.

    Patching changes the class of an existing tensor product in place, so that parameters, buffers,
    ``state_dict``, copying and pickling stay e3nn's own.
    """


_of_stock: dict[type, type] = {o3.FullyConnectedTensorProduct: FusedFullyConnectedTensorProduct}


def fused_class(stock: type) -> type:
    """Return the patched class for a stock class, which may be a NequIP package's copy."""
    if stock not in _of_stock:
        name = FusedFullyConnectedTensorProduct.__name__
        _of_stock[stock] = type(name, (_Grouped, stock), {"__module__": __name__})
    return _of_stock[stock]
