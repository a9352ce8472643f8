"""A stand-in for the package ``les``: what MACELES and NequIP-LES call, written for these tests.

Its classes have the names under which checkpoints store those of the package.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

for _name in ("les.les", "les.module", "les.module.ewald", "les.module.bec"):
    sys.modules[_name] = sys.modules[__name__]


class Ewald(torch.nn.Module):
    """The energy of Gaussian charges in right-handed cells, and without a cell."""

    __module__ = "les.module.ewald"

    def __init__(self, sigma: float, dl: float, remove_self_interaction: bool) -> None:
        super().__init__()
        self.sigma, self.dl, self.norm_factor = sigma, dl, 90.4756
        self.remove_self_interaction = remove_self_interaction

    def forward(self, q: Any, r: Any, cell: Any) -> Any:
        pi, sigma = torch.pi, self.sigma
        own = self.norm_factor / (sigma * (2 * pi) ** 1.5) * (q**2).sum()
        volume = torch.linalg.det(cell)
        if volume < 1e-6:
            i, j = torch.triu_indices(len(q), len(q), 1)
            distance = (r[i] - r[j]).norm(dim=1)
            pairs = q[i] * q[j] * torch.erf(distance / (2**0.5 * sigma)) / distance
            energy = self.norm_factor / (2 * pi) * pairs.sum()
            return energy if self.remove_self_interaction else energy + own
        most = [int(n) for n in cell.detach().norm(dim=1) / self.dl + 1e-9]
        n = torch.cartesian_prod(*(torch.arange(-m, m + 1) for m in most)).to(r)
        k = 2 * pi * n @ torch.linalg.inv(cell).T
        square = (k**2).sum(dim=1)
        inside = (square > 1e-9) & (square <= (2 * pi / self.dl) ** 2)
        k, square = k[inside], square[inside]
        phase = r @ k.T
        parts = (q @ torch.cos(phase)) ** 2 + (q @ torch.sin(phase)) ** 2
        weights = torch.exp(-0.5 * sigma**2 * square) / square
        energy = self.norm_factor / volume * (weights * parts).sum()
        return energy - own if self.remove_self_interaction else energy


class BEC(torch.nn.Module):
    """A part that only is there."""

    __module__ = "les.module.bec"


class Les(torch.nn.Module):
    """Sums of a batch of structures."""

    __module__ = "les.les"

    def __init__(self, les_arguments: dict[str, Any] | None = None) -> None:
        super().__init__()
        given = les_arguments or {}
        self.use_atomwise = given.get("use_atomwise", False)
        removed = given.get("remove_self_interaction", True)
        self.ewald = Ewald(given.get("sigma", 1.0), given.get("dl", 2.0), removed)
        self.bec = BEC()

    def forward(self, latent_charges: Any, positions: Any, cell: Any, batch: Any, **_: Any) -> Any:
        """Return the energy of each structure."""
        latent_charges = latent_charges.reshape(len(positions))
        energies = [
            self.ewald(latent_charges[batch == i], positions[batch == i], cell[i])
            for i in range(int(batch.max()) + 1)
        ]
        return {"E_lr": torch.stack(energies), "BEC": None}
