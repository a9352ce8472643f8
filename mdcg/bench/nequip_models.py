"""NequIP models with random weights, in the shapes of the foundation models."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["build_nequip"]


def build_nequip(
    preset: str, dtype: torch.dtype, *, seed: int = 0, **changes: Any
) -> torch.nn.Module:
    """Build a NequIP model with random weights in the shape of a foundation model.

    87 elements, r_max 6 Å, no parity, type embedding 32x0e, radial network 8-128.

    Parameters
    ----------
    preset : str
        ``"S"`` (2 layers, l 1), ``"M"`` (4 layers, l 2), ``"L"`` (6 layers, l 3) or ``"XL"``
        (6 layers, l 4).
    dtype : torch.dtype
        Of the network; torch's default dtype is the same before and after.
    seed : int
        Of the weights; the global generator keeps its state.
    **changes
        Other arguments of ``NequIPGNNModel``.
    """
    from ase.data import chemical_symbols

    from ..patch.nequip_files import nequip_state

    with nequip_state():
        from nequip.model import PresetNequIPGNNModel

        options: dict[str, Any] = {
            "preset": preset,
            "seed": seed,
            "model_dtype": str(dtype).removeprefix("torch."),
            "type_names": chemical_symbols[1:88],
            "r_max": 6.0,
            # sqrt of the true number: messages of random sign then have size 1
            "avg_num_neighbors": 9.0,
            **changes,
        }
        model: torch.nn.Module = PresetNequIPGNNModel(**options)
    return model
