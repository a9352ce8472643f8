"""The data of Grimme's D3 dispersion, which a package may hold beside its network.

The reference values come from ``tad-dftd3``, which has them as tensors, while ``dftd3`` keeps them
inside its library. They are coordination numbers and C6 coefficients (Grimme, Antony, Ehrlich and
Krieg, J. Chem. Phys. 132, 154104), and the parameters of functionals for zero and Becke-Johnson
damping. A package stores them for its elements, so evaluation needs neither library.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedProblemError, installed_version

#: Å per Bohr and eV per Hartree (CODATA 2018), the values of dftd3.
BOHR = 0.529177210903
HARTREE = 27.211386245988

#: Cutoff of coordination numbers in Bohr. It is part of D3's definition: the counting function is
#: still 1e-7 at large distances, so energies depend on the cutoff.
_COORDINATION_CUTOFF = 40.0
_COORDINATION_STEEPNESS = 16.0
_WEIGHT_STEEPNESS = 4.0

#: Parameters of each damping. Those in `_LENGTHS` are lengths in Bohr.
_DAMPINGS = {"bj": ("s6", "s8", "a1", "a2"), "zero": ("s6", "s8", "rs6", "rs8")}
_LENGTHS = ("a2",)
#: Exponent of zero damping, the same for all functionals of D3.
_ALPHA = 14.0


#: Functionals in names of heads, such as "omat_pbe", "matpes_r2scan" and "spice_wB97M".
_NAMED = re.compile(r"r2scan|revpbe|rpbe|pbesol|pbe0|pbe|scan|b3lyp|wb97m|wb97x", re.IGNORECASE)


def training_functional(head: str | None) -> str:
    """Return a sentence on the functional of the training data, from the name of the head."""
    found = _NAMED.search(head or "")
    if found is None:
        return "training functional: not recorded in the file"
    return f"training functional: {found[0]}, by the name of the head {head}"


def d3_data(
    functional: str, type_names: Sequence[str]
) -> tuple[dict[str, Any], dict[str, NDArray[np.float64]]]:
    """Return the object ``dispersion`` of a manifest and the tensors that it names.

    Case and hyphens in the name of the functional, such as ``"pbe"``, do not matter.
    """
    import torch
    from ase.data import atomic_numbers
    from tad_dftd3.data import R4R2
    from tad_dftd3.reference import Reference
    from tad_mctc.data import COV_D3, VDW_PAIRWISE

    damping = _parameters(functional)
    reference = Reference(dtype=torch.float64)
    numbers = []
    for name in type_names:
        number = atomic_numbers.get(name, 0)
        if not 0 < number < len(reference.cn):
            raise UnsupportedProblemError(
                f"dispersion is {functional!r}, and D3 has no reference data for the type {name}, "
                "expected elements from H to Lr: leave out --dispersion, or choose --types"
            )
        numbers.append(number)
    z = np.array(numbers)
    pairs = np.ix_(z, z)
    covalent = _array(COV_D3())[z] * BOHR * 3 / 4
    tensors = {
        # Rounding restores the published values after tad-dftd3's conversions of units.
        "dispersion.covalent_radii": np.round(covalent, 2) * 4 / 3,
        "dispersion.pair_radii": np.round(_array(VDW_PAIRWISE())[pairs] * BOHR, 4),
        "dispersion.q": _array(R4R2(dtype=torch.float64))[z] * BOHR,
        "dispersion.references": _array(reference.cn)[z],
        "dispersion.c6": np.ascontiguousarray(
            _array(reference.c6)[pairs].transpose(0, 2, 1, 3) * HARTREE * BOHR**6
        ),
    }
    absent = tensors["dispersion.references"] < 0
    tensors["dispersion.c6"][absent] = 0.0
    tensors["dispersion.c6"].transpose(2, 3, 0, 1)[absent] = 0.0
    entry = {
        "functional": functional,
        "source": f"tad-dftd3 {installed_version('tad-dftd3')}",
        "coordination_cutoff": _COORDINATION_CUTOFF * BOHR,
        "coordination_steepness": _COORDINATION_STEEPNESS,
        "weight_steepness": _WEIGHT_STEEPNESS,
        "damping": damping,
        **{name.removeprefix("dispersion."): name for name in tensors},
    }
    return entry, tensors


def _parameters(functional: str) -> dict[str, dict[str, float]]:
    """Return a functional's parameters for each damping that it has, lengths in Å."""
    import torch
    from tad_dftd3.param import get_functional_params

    found: dict[str, dict[str, float]] = {}
    for damping, names in _DAMPINGS.items():
        try:
            tensors = get_functional_params(functional, damping, dtype=torch.float64)
        except KeyError:
            raise UnsupportedProblemError(
                f"--dispersion is {functional!r}, which D3 has no parameters for, expected a "
                "functional such as pbe, pbesol, rpbe, r2scan or b3lyp"
            ) from None
        except ValueError:
            continue
        values = {name: float(value) for name, value in tensors.items()}
        if values.get("alp", _ALPHA) == _ALPHA:
            found[damping] = {
                name: values[name] * (BOHR if name in _LENGTHS else 1.0) for name in names
            }
    if not found:
        raise UnsupportedProblemError(
            f"--dispersion is {functional!r}, which has parameters for other dampings alone, "
            "expected a functional with those of bj (Becke and Johnson) or zero"
        )
    return found


def _array(values: Any) -> NDArray[np.float64]:
    """Return a tensor of torch in float64."""
    return np.asarray(values.double().numpy())
