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


def set_constants(model: Any, factor: float | None, own_part: str | None) -> None:
    """Set constants of the sum of a NequIP-LES model, whose checkpoint does not hold them.

    The installed ``les`` has given them to the model; it may be another version than in training.

    Parameters
    ----------
    model : torch.nn.Module
        Changed in place.
    factor : float, optional
        The norm factor 1 / (2 epsilon_0) in eV Å/e².
    own_part : {"kept", "removed"}, optional
        Whether the interaction of each charge with itself is part of the energy.

    Raises
    ------
    ValueError
        The model has no such sum, or a value is none of these.
    """
    sums = [m for m in model.modules() if type(m).__name__ == "LatentEwaldSum"]
    if not sums:
        raise ValueError(
            "the constants of a long-range sum are given, and the model is none of NequIP-LES, "
            "whose checkpoints lack them: leave them out"
        )
    if factor is not None and not 0 < factor < 1e6:
        raise ValueError(f"the norm factor is {factor:g}, expected a number over 0 such as 90.4756")
    if own_part not in (None, "kept", "removed"):
        raise ValueError(f"the own part is {own_part!r}, expected 'kept' or 'removed'")
    for module in sums:
        if factor is not None:
            module.les.ewald.norm_factor = factor
        if own_part is not None:
            module.les.ewald.remove_self_interaction = own_part == "removed"


def refuse_parts(module: Any, parts: dict[str, str], at: str) -> None:
    """Raise if one of the attributes of a module is true; `parts` says what it switches on."""
    for name, what in parts.items():
        if getattr(module, name, False):
            raise UnsupportedProblemError(f"{at} has {what} ({name}), which packages do not have")
