"""Reads long-range sums of latent charges (LES) from modules of the package ``les``."""

from __future__ import annotations

from typing import Any

from ..errors import UnsupportedProblemError
from .builder import Builder, Features

# Parts of a long-range sum that packages do not have, by the attribute that switches them on.
_REFUSED = {
    "use_atomwise": "a network of its own for the charges",
    "use_fixed_atomic_charges": "fixed charges of the elements",
    "use_atomic_alpha": "polarizabilities",
    "use_epsilon_r_scaling": "a scaling by a dielectric constant",
}


def add_long_range(builder: Builder, charges: Features, les: Any, at: str) -> None:
    """Write the energy of charges as a module of class ``Les`` computes it."""
    refuse_parts(les, _REFUSED, at)
    ewald: Any = getattr(les, "ewald", None)
    names = ("sigma", "dl", "norm_factor", "remove_self_interaction")
    missing = [name for name in names if not hasattr(ewald, name)]
    if missing:
        raise UnsupportedProblemError(
            f"{at}.ewald has no {missing[0]}, expected the sum of the package les, with "
            f"{', '.join(names)}"
        )
    sigma, spacing, factor = (float(getattr(ewald, name)) for name in names[:3])
    builder.charges(charges)
    builder.ewald(
        charges, sigma, spacing, factor, bool(ewald.remove_self_interaction), "long_range"
    )


def refuse_parts(module: Any, parts: dict[str, str], at: str) -> None:
    """Raise if one of the attributes of a module is true; `parts` says what it switches on."""
    for name, what in parts.items():
        if getattr(module, name, False):
            raise UnsupportedProblemError(f"{at} has {what} ({name}), which packages do not have")
